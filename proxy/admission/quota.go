package admission

import (
	"maps"
	"math"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
)

// Tenant is one logical database's share of a proxy.
type Tenant struct {
	Policy
	Name string

	ops, bytes *rate.Limiter
}

// Book is the policies that a proxy knows.
type Book struct {
	tenants atomic.Pointer[map[string]*Tenant]
}

// NewBook makes a book in which everything is allowed.
func NewBook() *Book {
	b := &Book{}
	b.tenants.Store(&map[string]*Tenant{})
	return b
}

// Set replaces the policies. A database whose policy did not change keeps what
// it has used of its quotas.
func (b *Book) Set(policies map[string]Policy) {
	old := *b.tenants.Load()
	fresh := make(map[string]*Tenant, len(policies))
	for name, p := range policies {
		if t := old[name]; t != nil && t.Policy == p {
			fresh[name] = t
			continue
		}
		fresh[name] = &Tenant{
			Policy: p, Name: name,
			ops: limiter(p.OpsPerSecond, p.OpsBurst), bytes: limiter(p.BytesPerSecond, p.BytesBurst),
		}
	}
	b.tenants.Store(&fresh)
}

// limiter makes a token bucket; nil without a quota.
func limiter(perSecond float64, burst int) *rate.Limiter {
	if perSecond <= 0 {
		return nil
	}
	if burst == 0 {
		burst = int(math.Ceil(perSecond))
	}
	return rate.NewLimiter(rate.Limit(perSecond), burst)
}

// Of gives a database's share, nil when it has no policy.
func (b *Book) Of(database []byte) *Tenant { return (*b.tenants.Load())[string(database)] }

// Policies gives every policy.
func (b *Book) Policies() map[string]Policy {
	out := map[string]Policy{}
	for name, t := range maps.All(*b.tenants.Load()) {
		out[name] = t.Policy
	}
	return out
}

// Rules that a request may break.
const (
	RuleOps   = "ops_per_second"
	RuleBytes = "bytes_per_second"
)

// Take takes one operation of size bytes from the quotas. It gives the rule that
// has no room, and when there would be.
func (t *Tenant) Take(now time.Time, size int) (rule string, after time.Duration) {
	if t.bytes != nil {
		if missing := 1 - t.bytes.TokensAt(now); missing > 0 {
			return RuleBytes, seconds(missing / float64(t.bytes.Limit()))
		}
	}
	if t.ops != nil && !t.ops.AllowN(now, 1) {
		return RuleOps, seconds((1 - t.ops.TokensAt(now)) / float64(t.ops.Limit()))
	}
	t.Spend(now, size)
	return "", 0
}

// Spend takes bytes that are there already, a reply's for instance: the next
// request waits for them.
func (t *Tenant) Spend(now time.Time, size int) {
	if t.bytes == nil {
		return
	}
	// A bucket gives at most its burst at once, and may go into debt.
	for burst := t.bytes.Burst(); size > 0; size -= burst {
		t.bytes.ReserveN(now, min(size, burst))
	}
}

// seconds makes a duration of them.
func seconds(s float64) time.Duration { return time.Duration(max(0, s) * float64(time.Second)) }
