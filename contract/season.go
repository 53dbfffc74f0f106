package contract

import "time"

// SeasonWorkflow is the workflow type of a season: the fleet grows before it and
// shrinks after it.
const SeasonWorkflow = "PrepareSeason"

// The kinds of a season's intents.
const (
	SeasonIntent = "season" // holds the spare shards until the season is over
	ExpandIntent = "expand" // chunks on to spare shards
	ShrinkIntent = "shrink" // and off them again
)

// SeasonID is the workflow id of a season.
func SeasonID(name string) string { return "capacity/" + name }

// SeasonInput is a time at which the fleet serves more.
type SeasonInput struct {
	Name        string          `json:"name"`
	Factor      float64         `json:"factor"` // of the operations of when it is planned
	At          time.Time       `json:"at"`
	Until       time.Time       `json:"until"`
	Spare       []string        `json:"spare"`             // the pool: shards that are empty outside of seasons
	Fill        float64         `json:"fill"`              // up to which use shards are filled, 0 to 1
	Lead        Duration        `json:"lead,omitempty"`    // so long before At it begins; 0: by the measured rates of moves
	MoveRate    float64         `json:"moveRate,omitzero"` // bytes per second of one move; 0: as measured
	Settings    BalanceSettings `json:"settings"`
	AtOnce      int             `json:"atOnce,omitempty"`
	BurnIn      Duration        `json:"burnIn,omitempty"`
	Approval    string          `json:"approval,omitempty"`
	Complete    string          `json:"complete,omitempty"`
	FiguresAt   time.Time       `json:"figuresAt"` // when the plan was made that a person saw
	RequestedBy string          `json:"requestedBy"`
	Reason      string          `json:"reason,omitempty"`
	Resumed     *SeasonState    `json:"resumed,omitempty"` // set by the workflow itself
}

// The stages of a season.
const (
	SeasonAhead  = "ahead"     // nothing moves yet
	SeasonGrows  = "expanding" // chunks move on to spare shards
	SeasonServes = "serving"   // until its end
	SeasonWanes  = "shrinking" // chunks move off the spare shards
	SeasonOver   = "over"
)

// SeasonState answers the status query, and goes from one run to the next.
type SeasonState struct {
	ID         string    `json:"id"`
	Run        string    `json:"run"`      // the first of the chain
	OpenedAt   time.Time `json:"openedAt"` // zero: not yet admitted
	Stage      string    `json:"stage"`
	BeginsAt   time.Time `json:"beginsAt,omitzero"` // by the newest look
	LookedAt   time.Time `json:"lookedAt,omitzero"`
	Planned    int       `json:"planned"`  // moves of the newest look
	Bytes      int64     `json:"bytes"`    // that those copy
	Expected   Duration  `json:"expected"` // time of copying
	Expanded   string    `json:"expanded,omitempty"`
	Shrunk     string    `json:"shrunk,omitempty"`
	Held       string    `json:"held,omitempty"`    // what keeps it from going on; it tries again
	Kept       []Refused `json:"kept,omitempty"`    // chunks that stayed on spare shards when it was over
	Stopped    string    `json:"stopped,omitempty"` // by whom and why
	WaitingFor string    `json:"waitingFor"`
}

// SeasonLook asks for the plan of a season as the fleet is now.
type SeasonLook struct {
	SeasonInput
	Back bool `json:"back,omitempty"` // off the spare shards
}

// SeasonPlan is what a season needs now. Its moves are there only once they are due.
type SeasonPlan struct {
	Plan     FleetPlan `json:"plan"`
	Count    int       `json:"count"` // of the moves
	Bytes    int64     `json:"bytes"`
	Expected Duration  `json:"expected"` // time of copying
	BeginsAt time.Time `json:"beginsAt,omitzero"`
	Due      bool      `json:"due"`
	Left     int       `json:"left"`           // chunks on spare shards
	Kept     []Refused `json:"kept,omitempty"` // of these the ones that are pinned there, with by whom
}

// PlanSeason reads the fleet and plans a season.
var PlanSeason = Activity[SeasonLook, SeasonPlan]{"PlanSeason"}
