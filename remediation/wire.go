package remediation

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
)

// operations lists every type of operation once.
var operations = []Operation{
	GiveVote{}, TakeVote{}, SetPriority{}, SetVisibility{}, StepDown{}, AwaitElection{},
	Await{}, Rebuild{}, Replace{}, ResizeOplog{}, Add{}, Remove{},
}

// Order is an operation as it travels: its name and its values.
type Order struct {
	Name   string          `json:"name"`
	Values json.RawMessage `json:"values"`
}

// NewOrder writes an operation down.
func NewOrder(o Operation) (Order, error) {
	values, err := json.Marshal(o)
	if err != nil {
		return Order{}, fmt.Errorf("encode %s: %w", o.Name(), err)
	}
	return Order{Name: o.Name(), Values: values}, nil
}

// Operation reads what [NewOrder] wrote. A name that is not known is an error.
func (o Order) Operation() (Operation, error) {
	i := slices.IndexFunc(operations, func(known Operation) bool { return known.Name() == o.Name })
	if i < 0 {
		return nil, fmt.Errorf("operation %q is not known", o.Name)
	}
	v := reflect.New(reflect.TypeOf(operations[i]))
	if err := json.Unmarshal(o.Values, v.Interface()); err != nil {
		return nil, fmt.Errorf("decode %s: %w", o.Name, err)
	}
	return v.Elem().Interface().(Operation), nil
}

// Differences tells in what observed is not what was predicted, host by host. A
// single one means that the rest of the plan is void and a new one is made.
// Spares are not compared: they are the inventory's to tell.
func Differences(predicted, observed Vertex) []string {
	var found []string
	for i := range predicted.Members {
		p := &predicted.Members[i]
		at := observed.index(p.Host)
		if at < 0 {
			found = append(found, p.Host+": is missing")
			continue
		}
		found = append(found, p.differences(&observed.Members[at])...)
	}
	for i := range observed.Members {
		if host := observed.Members[i].Host; predicted.index(host) < 0 {
			found = append(found, host+": is unexpected")
		}
	}
	return found
}

// differences tells in what o is not m.
func (m *Member) differences(o *Member) []string {
	var found []string
	compare := func(field string, want, got any) {
		if want != got {
			found = append(found, fmt.Sprintf("%s: %s is %v instead of %v", m.Host, field, got, want))
		}
	}
	compare("zone", m.Zone, o.Zone)
	compare("instance", m.Instance, o.Instance)
	compare("state", m.State, o.State)
	compare("votes", m.Votes, o.Votes)
	compare("priority", m.Priority, o.Priority)
	compare("hidden", m.Hidden, o.Hidden)
	compare("delay", m.Delay, o.Delay)
	compare("arbiter", m.Arbiter, o.Arbiter)
	if m.OplogMB != 0 { // 0: whatever a fresh member takes
		compare("oplog_mb", m.OplogMB, o.OplogMB)
	}
	compare("primary", m.Primary, o.Primary)
	return found
}
