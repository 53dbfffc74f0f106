// Command profiles shows what a switch is to applications that retry in
// different ways: it holds fences for given times, lets each kind of client read
// and write meanwhile through a real proxy, and counts the errors that reach the
// application and the attempts that each request took. Its shards are simulated,
// so it needs no server. It writes bench/out/profiles.json.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"drover/bench/fences"
	"drover/bench/figures"
	"drover/internal/pause"
)

// report is the file. Names of fields do not change.
type report struct {
	Cells       int           `json:"cells"`
	Unexpected  int           `json:"unexpected"` // cells that ended in another way than is defined
	AppliedMore int           `json:"applied_more_than_acknowledged"`
	LiveHold    time.Duration `json:"-"`
	SureHold    time.Duration `json:"-"`
	LiveHoldMS  int64         `json:"hold_while_known_ms"`
	SureHoldMS  int64         `json:"hold_while_unknown_ms"`
	Rows        []row         `json:"rows"`
}

func main() { figures.Main(func(ctx context.Context) error { return run(ctx, os.Stdout) }) }

// run is main with errors.
func run(ctx context.Context, out io.Writer) error {
	path := flag.String("out", "bench/out/profiles.json", "file to write")
	requests := flag.Int("requests", 8, "requests of each kind at each fence")
	times := flag.String("fences", "0.05,0.25,0.5,1,2,5", "seconds for which fences are held")
	flag.Parse()
	if *requests < 1 || *requests > fences.MostRequests {
		return fmt.Errorf("requests is %d; want 1 to %d", *requests, fences.MostRequests)
	}
	lengths, err := parseSeconds(*times)
	if err != nil {
		return err
	}
	rep := &report{}
	for _, known := range []bool{true, false} {
		if err := rep.measure(ctx, known, lengths, *requests, out); err != nil {
			return err
		}
	}
	rep.LiveHoldMS, rep.SureHoldMS = rep.LiveHold.Milliseconds(), rep.SureHold.Milliseconds()
	if _, err := figures.Write(*path, rep); err != nil {
		return err
	}
	rep.print(out)
	if rep.Unexpected > 0 || rep.AppliedMore > 0 {
		return fmt.Errorf("%d of %d cells ended in another way than is defined, %d writes ran more often than they were acknowledged", rep.Unexpected, rep.Cells, rep.AppliedMore)
	}
	return nil
}

// parseSeconds reads the list of the flag.
func parseSeconds(list string) ([]time.Duration, error) {
	var out []time.Duration
	for s := range strings.SplitSeq(list, ",") {
		v, err := strconv.ParseFloat(strings.TrimSpace(s), 64)
		if err != nil || v <= 0 {
			return nil, fmt.Errorf("--fences has %q; want seconds above 0", s)
		}
		out = append(out, time.Duration(v*float64(time.Second)))
	}
	return out, nil
}

// measure holds each fence once. Where known, the proxy hears of the switch and
// it goes forward; else it hears nothing, cannot read the metadata, and the
// switch goes back.
func (r *report) measure(ctx context.Context, known bool, lengths []time.Duration, requests int, out io.Writer) (err error) {
	f, err := fences.New(fences.Settings{Deaf: !known, Blind: !known, Profiles: fences.Profiles(timeoutMS, firstPause)})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	r.LiveHold, r.SureHold = f.Live, f.Sure
	for _, length := range lengths {
		_, _ = fmt.Fprintf(out, "fence of %s, %s\n", length, knowledge(known))
		rows, err := f.Hold(ctx, requests, func(ctx context.Context, up *fences.Fence) error {
			if err := pause.For(ctx, length); err != nil {
				return err
			}
			return up.Release()
		}, nil)
		if err != nil {
			return err
		}
		for _, got := range rows {
			x := row{Known: known, FenceMS: length.Milliseconds(), Row: got}
			x.Expected = expected(x, r.LiveHold, r.SureHold)
			r.Cells++
			if !x.fits() {
				r.Unexpected++
			}
			r.AppliedMore += x.AppliedMore
			r.Rows = append(r.Rows, x)
		}
	}
	return nil
}

// knowledge says what the proxy knew, for people.
func knowledge(known bool) string {
	if known {
		return "known to the proxy"
	}
	return "unknown to the proxy"
}

func (r *report) print(out io.Writer) {
	t := tabwriter.NewWriter(out, 2, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(t, "THE PROXY\tFENCE\tPROFILE\tKIND\tREQUESTS\tERRORS\tATTEMPTS\tLONGEST\tCODES\tDEFINED")
	for _, x := range r.Rows {
		_, _ = fmt.Fprintf(t, "%s\t%.2f s\t%s\t%s\t%d\t%d\t%.1f\t%.2f s\t%s\t%s\n", map[bool]string{true: "knows", false: "does not know"}[x.Known],
			float64(x.FenceMS)/1000, x.Profile, x.Kind, x.Requests, x.Errors, x.Attempts, float64(x.LongestMS)/1000, strings.Join(x.Codes, " "), x.Expected)
	}
	_ = t.Flush() // standard output
}
