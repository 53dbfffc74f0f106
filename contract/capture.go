package contract

// CaptureInput supervises the capture of one shard, for ever.
type CaptureInput struct {
	Shard    string `json:"shard"`
	Failures int    `json:"failures,omitempty"` // carried over by continue-as-new
}

// CaptureStatus answers the status query of a capture.
type CaptureStatus struct {
	Shard     string `json:"shard"`
	State     string `json:"state"` // running or needs recopy
	LastError string `json:"lastError,omitempty"`
	Restarts  int    `json:"restarts"`
}

// The activities of a capture: both run until they are cancelled.
var (
	RunCapture = Activity[CaptureInput, None]{"RunCapture"}
	RunArchive = Activity[CaptureInput, None]{"RunArchive"}
)
