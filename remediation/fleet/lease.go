package fleet

// lease has the rules of the leases on one shard as the metadata keeps them: a
// switch holds it shared, remediation exclusively; one that waits for it
// exclusively keeps new shared ones away; an open attempt keeps an exclusive
// one away. Each grant has a new epoch.
type lease struct {
	shared   int
	holder   *run // exclusively
	waiting  bool
	attempts int // open ones that name the shard
	epoch    int
}

// share gives it to one switch more.
func (l *lease) share() bool {
	if l.holder != nil || l.waiting {
		return false
	}
	l.shared++
	l.epoch++
	return true
}

// unshare takes it back from one switch.
func (l *lease) unshare() { l.shared-- }

// take gives it exclusively, to its holder again too; a refusal goes on waiting.
func (l *lease) take(by *run) bool {
	if l.holder != by && (l.holder != nil || l.shared > 0 || l.attempts > 0) {
		l.waiting = true
		return false
	}
	l.waiting, l.holder = false, by
	l.epoch++
	return true
}

// drop ends an exclusive lease, given back or expired.
func (l *lease) drop() { l.holder, l.waiting = nil, false }
