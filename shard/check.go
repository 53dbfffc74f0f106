package shard

import (
	"context"
	"errors"
	"fmt"

	"drover/chunk"
	"drover/internal/failure"
)

// Finding is one thing that a check looked at.
type Finding struct {
	Level string `json:"level"` // "ok", "warn" or "error"
	Code  string `json:"code"`
	What  string `json:"what"`
	Hint  string `json:"hint,omitempty"`
}

// Report is what `drover shard check` prints.
type Report struct {
	Shard        string             `json:"shard"`
	Primary      string             `json:"primary"`
	Term         int64              `json:"term"`
	Members      []Member           `json:"members"`
	Capabilities chunk.Capabilities `json:"capabilities"`
	Others       []Principal        `json:"others,omitempty"`
	Findings     []Finding          `json:"findings"`
}

// OK reports whether nothing forbids to work on the shard.
func (r Report) OK() bool {
	for _, f := range r.Findings {
		if f.Level == "error" {
			return false
		}
	}
	return true
}

// Check looks at a shard again: it can be reached, its members answer, it asks for
// a login, what its server can do, and who else may write. Only an answer that
// could not be had at all is an error; the rest is in the report.
func (s *Set) Check(ctx context.Context) (Report, error) {
	r := Report{Shard: s.Name()}
	st, err := s.Status(ctx)
	if err != nil {
		return r, err
	}
	r.Primary, r.Term, r.Members = st.Host, st.Term, st.Members
	for _, m := range st.Members {
		if !m.Healthy {
			r.add("warn", "shard.member_down", fmt.Sprintf("member %s is %s", m.Host, m.State), "a switch waits for it, or owes it the barrier")
		}
	}
	if err := checkAuth(ctx, s.shard); err != nil {
		if !r.failed(err) {
			return r, err
		}
	}
	if r.Capabilities, err = s.Probe(ctx); err != nil {
		return r, err
	}
	if err := checkVersion(s.Name(), r.Capabilities.Version); err != nil {
		r.failed(err)
	}
	s.checkCapabilities(&r)
	if r.Others, err = s.CheckPrincipals(ctx); err != nil {
		return r, err
	}
	for _, p := range r.Others {
		r.add("error", "shard.other_writers", fmt.Sprintf("user %s may write: %s", p.User, p.Why),
			"a write that does not come through the proxy is not fenced; remove the role, or allow it knowingly")
	}
	if len(r.Findings) == 0 {
		r.add("ok", "shard.ok", "nothing to say against it", "")
	}
	return r, nil
}

// checkCapabilities says what a missing ability means for a move.
func (s *Set) checkCapabilities(r *Report) {
	c := r.Capabilities
	for _, x := range []struct {
		has        bool
		code, what string
	}{
		{c.ListsOperations, "shard.no_operations_list", "the server does not list other clients' operations: the drain goes by the live proxies' word, a grace period and the final marker"},
		{c.PinsSnapshots, "shard.no_pinned_snapshots", "snapshot reads are not pinned: slices are read inside transactions"},
		{c.DisambiguatedPaths, "shard.no_disambiguated_paths", "update events do not tell array indexes from field names: what cannot be decided is quarantined"},
		{c.InvalidatesUserCache, "shard.no_cache_invalidation", "the user cache cannot be emptied: the barrier relies on the privileges that a connection sees"},
		{c.KeepsTransactionRecord, "shard.no_write_records", "retryable writes leave no record: a retry over a switch may get \"outcome unknown\""},
		{c.KeepsEmptyTimestamps, "shard.no_empty_timestamps", "Timestamp(0, 0) at the top level is rewritten by the server on a plain insert"},
	} {
		if !x.has {
			r.add("warn", x.code, x.what, "")
		}
	}
	if s.shard.Capabilities != (chunk.Capabilities{}) && s.shard.Capabilities != c {
		r.add("warn", "shard.capabilities_changed", "the server can do other things than when it was registered", "run `drover shard add` again to register them")
	}
}

// add notes a finding.
func (r *Report) add(level, code, what, hint string) {
	r.Findings = append(r.Findings, Finding{Level: level, Code: code, What: what, Hint: hint})
}

// failed notes an error that is a finding and not a lack of an answer.
func (r *Report) failed(err error) bool {
	e, ok := errors.AsType[*failure.Error](err)
	if !ok || e.Kind != failure.Invalid {
		return false
	}
	r.add("error", e.Code, e.Error(), e.Hint)
	return true
}
