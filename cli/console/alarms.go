package console

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"drover/metadata"
)

// Alarm is one that Alertmanager holds, as its API gives it.
type Alarm struct {
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
	StartsAt    time.Time         `json:"startsAt"`
}

// AlarmView is one alarm.
type AlarmView struct {
	Name     string `json:"name"`
	Severity string `json:"severity"`
	Summary  string `json:"summary"`
	For      string `json:"for,omitempty"`
	Runbook  string `json:"runbook"`
}

// Alertmanager asks one for the alarms that are on, neither silenced nor inhibited.
func Alertmanager(address string) func(context.Context) ([]Alarm, error) {
	url := strings.TrimRight(address, "/") + "/api/v2/alerts?active=true&silenced=false&inhibited=false&unprocessed=false"
	return func(ctx context.Context) ([]Alarm, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return nil, fmt.Errorf("ask %s: %w", address, err)
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			return nil, fmt.Errorf("ask %s: %w", address, err)
		}
		defer func() { _ = res.Body.Close() }()
		if res.StatusCode != http.StatusOK {
			return nil, fmt.Errorf("ask %s: it answers %s", address, res.Status)
		}
		var all []Alarm
		if err := json.NewDecoder(res.Body).Decode(&all); err != nil {
			return nil, fmt.Errorf("read what %s says: %w", address, err)
		}
		return all, nil
	}
}

// The bounds of the alarms that the metadata shows by itself, as in deploy/alerts.
const (
	captureSilent  = 60   // seconds
	fenceOverdue   = 5    // seconds
	leaseForgotten = -300 // seconds left
)

// alarms shows those of Alertmanager, or without one those that the metadata shows.
func (v *Page) alarms(c *Console, all []Alarm, err error) {
	if c.Alarms != nil && err == nil {
		v.AlarmsFrom = "as Alertmanager has them"
		for _, a := range all {
			v.Alarms = append(v.Alarms, AlarmView{
				Name: a.Labels["alertname"], Severity: a.Labels["severity"], Summary: a.Annotations["summary"],
				For: v.At.Sub(a.StartsAt).Round(time.Second).String(), Runbook: a.Annotations["runbook_url"],
			})
		}
	} else {
		v.AlarmsFrom = "those that the metadata shows by itself; with --alertmanager all that there are"
		if v.Problem != "" {
			v.Alarms = append(v.Alarms, alarm("MetadataUnreadable", "page", "This console cannot read the metadata"))
		}
		if c.kept != nil {
			v.Alarms = append(v.Alarms, seen(&c.kept.Figures)...)
		}
	}
	slices.SortFunc(v.Alarms, func(a, b AlarmView) int {
		return cmp.Or(cmp.Compare(a.Severity, b.Severity), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Summary, b.Summary))
	})
}

// alarm names one of those in deploy/alerts.
func alarm(name, severity, format string, args ...any) AlarmView {
	return AlarmView{Name: name, Severity: severity, Summary: fmt.Sprintf(format, args...), Runbook: "docs/alarms.md#" + strings.ToLower(name)}
}

// seen are the alarms that the metadata shows by itself.
func seen(f *metadata.Figures) (out []AlarmView) {
	if f.Overdue > fenceOverdue*time.Second {
		out = append(out, alarm("FencePastDeadline", "page", "An attempt is %s past its deadline and still open", f.Overdue.Round(time.Second)))
	}
	for _, c := range f.Captures {
		if c.Silence > captureSilent {
			out = append(out, alarm("CaptureSilent", "page", "Nothing has been captured of %s for %.0f s", c.Shard, c.Silence))
		}
	}
	for shard, n := range f.Stragglers {
		if n > 0 {
			out = append(out, alarm("Stragglers", "page", "%d writes reached closed placements of %s", n, shard))
		}
	}
	for _, m := range f.Moves {
		if m.Attention != "" {
			out = append(out, alarm("MoveNeedsPerson", "page", "The move of %s waits for a person: %s", m.Chunk, m.Attention))
		}
		if n := m.Mismatches + m.Quarantined; n > 0 {
			out = append(out, alarm("MoveDiffers", "page", "Both sides of %s differ (%d)", m.Chunk, n))
		}
	}
	for _, l := range f.Leases {
		if l.Left < leaseForgotten {
			out = append(out, alarm("LeaseExpired", "ticket", "The lease of %s on %s ended %.0f s ago and was never given back", l.Holder, l.Shard, -l.Left))
		}
	}
	return out
}
