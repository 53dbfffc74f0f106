package cli

import (
	"fmt"
	"strings"

	"drover/metadata"
	"drover/shard"
)

// mostScattered is the share of requests that may concern several chunks.
const mostScattered = 0.1

// asked answers a question about what has a hand in the shards: found are those about
// whom something is to be said, and what kept shards from being asked comes behind.
func (e *evidence) asked(x answer, none string, about func(shard.Beside) []shard.Principal) answer {
	var found, silent []string
	for _, s := range e.surveyed {
		if s.BesideErr != nil {
			silent = append(silent, fmt.Sprintf("%s was not asked (%v)", s.Shard, s.BesideErr))
		}
		for _, p := range about(s.Beside) {
			found = append(found, fmt.Sprintf("%s: %s (%s)", s.Shard, p.User, p.Why))
		}
	}
	switch {
	case len(found) > 0:
		x.Verdict, x.Measured = readyLook, strings.Join(append(found, silent...), ", ")
	case len(silent) > 0:
		x.Verdict, x.Measured, x.Advice = readyUnknown, strings.Join(silent, ", "), "bring it back, and ask again; drover shard check SHARD says what is wrong"
	case len(e.surveyed) == 0:
		x.Verdict, x.Measured, x.Advice = readyUnknown, noShard, addShard
	default:
		x.Verdict, x.Measured, x.Advice = readyGood, fmt.Sprintf("%s, on %d shards", none, len(e.surveyed)), ""
	}
	return x
}

// writersBeside: who may write where Drover keeps data, past the proxies?
func (e *evidence) writersBeside() answer {
	return e.asked(answer{
		Question: "writers beside the proxies",
		Advice:   "no fence holds such a write: point it at the proxies and take its role away (drover shard check, drover db adopt --check)",
	}, "nobody may write", func(b shard.Beside) []shard.Principal { return b.Writers })
}

// controllers: who else changes what Drover works on?
func (e *evidence) controllers() answer {
	x := e.asked(answer{
		Question: "other controllers",
		Advice:   "a tool that changes members or votes by itself works against moves and repairs: stop it, or hold drover lease take while it works",
	}, "no user but administrators may change a set", func(b shard.Beside) (out []shard.Principal) {
		for _, p := range b.Controllers {
			if !p.Root() {
				out = append(out, p)
			}
		}
		return out
	})
	var here []string
	for _, i := range e.intents {
		if i.EndedAt == nil {
			here = append(here, i.WorkflowID+" runs")
		}
	}
	for _, l := range e.figures.Leases {
		if l.Mode == string(metadata.ExclusiveLease) && !l.Waiting {
			here = append(here, fmt.Sprintf("%s has %s to itself", l.Holder, l.Shard))
		}
	}
	if len(here) > 0 {
		x.Measured += "; of Drover: " + strings.Join(here, ", ")
	}
	return x
}

// fanOut: how many chunks does a request concern?
func (e *evidence) fanOut() answer {
	x := answer{Question: "fan-out of requests", Verdict: readyUnknown, Measured: "no proxy has seen a request yet", Advice: sendWork}
	var requests, chunks, scattered, most float64
	worst := ""
	for _, c := range e.callers {
		requests, chunks, scattered = requests+float64(c.Requests), chunks+float64(c.Chunks), scattered+float64(c.Scattered)
		if share := float64(c.Scattered) / float64(max(1, c.Requests)); share > most {
			most, worst = share, fmt.Sprintf("; %s (%s): %.1f%%", c.App, c.User, 100*share)
		}
	}
	if requests == 0 {
		return x
	}
	x.Verdict, x.Advice = readyGood, ""
	x.Measured = fmt.Sprintf("%.2f chunks a request, %.1f%% of %.0f requests concern several%s", chunks/requests, 100*scattered/requests, requests, worst)
	if scattered > mostScattered*requests {
		x.Verdict, x.Advice = readyLook, "put the shard key into filters: /shapes at --metrics-listen of a proxy names the requests; each such one waits for the slowest shard"
	}
	return x
}
