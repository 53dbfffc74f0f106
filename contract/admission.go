package contract

import "fmt"

// AdmitInput asks whether a move may begin its import.
type AdmitInput struct {
	Ref
	Always   bool     `json:"always,omitempty"`   // whatever else converges on its target
	Patience Duration `json:"patience,omitempty"` // ask again for so long until it may; 0: once
}

// Admission is what a move met that wants to begin its import: the target must have
// been seen to apply twice what then converges on it.
type Admission struct {
	Admitted   bool    `json:"admitted"`
	Shard      string  `json:"shard"`    // the target with the least room
	Capacity   float64 `json:"capacity"` // changes a second that it was seen to apply; 0: never measured
	Converging float64 `json:"converging"`
	Others     int     `json:"others"`         // moves that converge on it
	Demand     float64 `json:"demand"`         // of this move, changes a second
	Held       string  `json:"held,omitempty"` // why nothing begins now, whatever there is room for
}

// RoomCheck is the name by which a person may waive what a move waits for before its import.
const RoomCheck = "room"

// SpareFactor is how many times what converges on a target it must be able to apply.
const SpareFactor = 2

// Reason says why a move waits, or what it was admitted by.
func (a Admission) Reason() string {
	if a.Held != "" {
		return a.Held
	}
	if a.Capacity == 0 {
		return fmt.Sprintf("what %s can apply was never measured: nothing is held back", a.Shard)
	}
	return fmt.Sprintf("%s was seen to apply %.0f changes/s; %d moves bring it %.0f/s and this one %.0f/s, of which it must manage %dx",
		a.Shard, a.Capacity, a.Others, a.Converging, a.Demand, SpareFactor)
}

// AdmitMove decides about one move at a time.
var AdmitMove = Activity[AdmitInput, Admission]{"AdmitMove"}
