// Command catchup shows what becomes of a move when the target applies hardly more
// than is written: the backlog of the import, the forecast that an operator is
// told, and the time that it takes. Time and rates are made up, the forecast is
// the one that moves have. It needs no server.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"drover/bench/figures"
	"drover/contract"
	"drover/replication"
)

func main() { figures.Main(func(context.Context) error { return run(os.Stdout) }) }

// run is main with errors.
func run(out io.Writer) error {
	m := move{}
	flag.Int64Var(&m.apply, "apply", 5000, "changes per second that the target applies")
	flag.DurationVar(&m.imported, "import", 10*time.Minute, "how long the import took, in which changes piled up")
	flag.Parse()
	if m.apply < 100 || m.imported < time.Minute {
		return fmt.Errorf("apply is %d, import %s; want 100 and 1m at least", m.apply, m.imported)
	}
	_ = m.lesson(out)
	return nil
}

// move is what all rows of the lesson have in common.
type move struct {
	apply    int64
	imported time.Duration
}

// row is one rate of writes.
type row struct {
	write    int64
	backlog  int64                // when the lanes begin
	forecast replication.Forecast // once it is sure of itself
	took     time.Duration        // until in sync; 0: never
	spare    bool                 // the target applies as many times the writes as a move beside others is asked for
}

// lesson lets writes come nearer to what the target applies, and past it.
func (m move) lesson(out io.Writer) (rows []row) {
	_, _ = fmt.Fprintf(out, "The target applies %d changes a second; the import took %s. What is written meanwhile must be caught up with.\n\n", m.apply, m.imported)
	_, _ = fmt.Fprintln(out, "written/s  of apply    backlog  in sync in  beside other moves")
	for _, percent := range []int64{10, 25, 50, 80, 90, 95, 99, 105} {
		r := m.catchUp(m.apply * percent / 100)
		rows = append(rows, r)
		took, room := "never", "waits for room"
		if r.took > 0 {
			took = r.took.String()
		}
		if r.spare {
			room = "admitted"
		}
		_, _ = fmt.Fprintf(out, "%9d  %6d %%  %9d  %10s  %s\n", r.write, percent, r.backlog, took, room)
	}
	last := rows[len(rows)-1]
	_, _ = fmt.Fprintf(out, "\nThe last one is told so, and does not wait for ever:\n  %s\n", last.forecast)
	_, _ = fmt.Fprintf(out, "A target of several moves must apply %d times what converges on it:\nthen catching up takes no longer than it took to fall behind.\n", contract.SpareFactor)
	return rows
}

// patience is the longest that the lesson looks on.
const patience = 24 * time.Hour

// catchUp lets lanes run, a second at a time, until they are in sync or it is said
// that they never will be.
func (m move) catchUp(write int64) (r row) {
	r = row{write: write, backlog: write * int64(m.imported.Seconds()), spare: m.apply >= contract.SpareFactor*write}
	lanes := []replication.Status{{Lag: time.Minute}}
	now, end, applied := time.Unix(0, 0), r.backlog, int64(0)
	var c replication.Catchup
	for took := time.Duration(0); took < patience; took += time.Second {
		f := c.Observe(now.Add(took), end, applied, lanes)
		if r.forecast.Pace == "" || r.forecast.Pace == replication.Unmeasured || f.Pace == replication.NotConverging {
			r.forecast = f
		}
		if f.Pace == replication.NotConverging {
			return r
		}
		if f.Pace == replication.InSync {
			r.took = took
			return r
		}
		end += write
		applied = min(end, applied+m.apply)
	}
	return r
}
