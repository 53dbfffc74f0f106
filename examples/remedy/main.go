// Command remedy breaks a simulated replica set of five members in three ways and
// lets remediation bring it back: it plans the fewest operations, does one, looks
// whether the set is as that operation predicted, and plans anew when it is not. It
// needs no server.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/bench/figures"
	"drover/remediation"
	"drover/shard/replset/replsettest"
)

func main() {
	figures.Main(func(ctx context.Context) error {
		_, err := lesson(ctx, os.Stdout)
		return err
	})
}

// layout is how the set is wanted: five voters over three zones, m0 the primary.
func layout() remediation.Layout {
	l := remediation.Layout{Name: "five"}
	for i, zone := range []string{"a", "a", "b", "b", "c"} {
		priority := 1.0
		if i == 0 {
			priority = 2
		}
		l.Slots = append(l.Slots, remediation.Slot{Zone: zone, Instance: "large", Votes: 1, Priority: priority, OplogMB: 2000})
	}
	return l
}

// names are the hosts' in what is printed; the last one is a spare machine in zone b.
var names = []string{"m0", "m1", "m2", "m3", "m4", "spare"} //nolint:gochecknoglobals // a constant

// document was acknowledged by a majority before anything broke.
const document = "app.orders"

// told is what the lesson came to.
type told struct {
	remediation.Outcome
	lost    bool // the majority was lost on the way
	rebuilt []string
	kept    int // documents of those acknowledged before
}

// lesson breaks the set and mends it.
func lesson(ctx context.Context, out io.Writer) (t told, err error) {
	w, err := replsettest.New(layout(), "b")
	if err != nil {
		return t, err
	}
	defer func() { err = errors.Join(err, w.Close(ctx)) }()
	w.Answer = time.Minute // whoever is down here refuses at once; a busy machine is no fault
	if w.Set, err = w.Open(replsettest.SetName); err != nil {
		return t, err
	}
	var pairs []string
	for i, host := range w.Hosts {
		pairs = append(pairs, host, names[i])
	}
	named := strings.NewReplacer(pairs...)
	say := func(format string, args ...any) {
		_, _ = fmt.Fprintln(out, named.Replace(fmt.Sprintf(format, args...)))
	}
	if !w.Sim.Put(document, bson.D{{Key: "_id", Value: 1}}) {
		return t, errors.New("the document was not acknowledged by a majority")
	}
	e, err := w.Executor()
	if err != nil {
		return t, err
	}

	say("Five members vote, in zones a a b b c; m0 is the primary. m1 goes down, and the machine of m2 is lost for good.")
	w.Sim.Kill(w.Hosts[1])
	w.Sim.Lose(w.Hosts[2])
	v, err := e.Look(ctx)
	if err != nil {
		return t, err
	}
	plan, err := e.Planner.Plan(v)
	if err != nil {
		return t, err
	}
	say("\nThe plan, of %d configurations looked at:\n%s", plan.Examined, plan)

	say("It is followed step by step. After the first one, somebody gives m3 a smaller oplog by hand.")
	done := 0
	e.Report = func(_ context.Context, p remediation.Progress) error {
		if done == 0 && p.Done == 1 {
			w.Sim.SetOplog(w.Hosts[3], 1000)
		}
		done = p.Done
		return nil
	}
	if t.Outcome, err = e.Run(ctx); err != nil {
		return t, err
	}
	for i, d := range t.Done {
		say("%2d. %s", i+1, d.Text)
	}
	t.lost, t.rebuilt, t.kept = w.Lost, strings.Split(named.Replace(strings.Join(w.Calls, ",")), ","), len(w.Sim.Documents(w.Sim.Primary(), document))
	say("\nPlans given up because the set was not as predicted: %d. Now: %s", t.Replans, t.To)
	say("The majority was lost on the way: %t. Nodes made anew: %s. The document is still there: %t.", t.lost, strings.Join(t.rebuilt, ", "), t.kept == 1)
	return t, nil
}
