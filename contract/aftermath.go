package contract

// What is done when a chunk is worse off after a switch than before.
const (
	AfterSwitchPage     = "page"     // a person is asked to look
	AfterSwitchRollback = "rollback" // the old placement serves again, and a person is told
	AfterSwitchOff      = "off"
)

// Traffic is how a placement served the applications within a minute, by the
// proxies' word: without the time that they held requests.
type Traffic struct {
	Proxies  int     `json:"proxies"` // that said something
	Requests int64   `json:"requests"`
	Errors   int64   `json:"errors"` // failed commands and broken connections
	P50MS    float64 `json:"p50MS"`
	P99MS    float64 `json:"p99MS"`
}

// ErrorRate is the share of requests that failed.
func (t Traffic) ErrorRate() float64 {
	if t.Requests == 0 {
		return 0
	}
	return float64(t.Errors) / float64(t.Requests)
}

// AftermathInput asks to watch a placement that has just begun to serve.
type AftermathInput struct {
	Ref
	Serving PlacementRef `json:"serving"`
	Before  Traffic      `json:"before"` // of the placement that served until then
	For     Duration     `json:"for"`
}

// PlacementRef names a placement in few words.
type PlacementRef struct {
	ID    int64  `json:"id"`
	Shard string `json:"shard"`
}

// AftermathResult is how the chunk does after a switch, against before.
type AftermathResult struct {
	Worse  bool    `json:"worse"`
	Why    string  `json:"why,omitempty"` // which figure, its value and its limit
	Before Traffic `json:"before"`
	After  Traffic `json:"after"`
	Limits []Limit `json:"limits,omitempty"`
}

// WatchSwitch watches until a figure has been past its limit for a while, or the
// time is over.
var WatchSwitch = Activity[AftermathInput, AftermathResult]{"WatchSwitch"}
