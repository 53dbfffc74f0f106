package fleet

import (
	"container/heap"
	"time"
)

// event is something that happens at a virtual time.
type event struct {
	at    time.Duration
	order int
	do    func()
}

// clock runs events in the order of their times, and those of one time in the
// order in which they were planned.
type clock struct {
	now    time.Duration
	events []event
	order  int
}

func (c *clock) Len() int      { return len(c.events) }
func (c *clock) Swap(i, j int) { c.events[i], c.events[j] = c.events[j], c.events[i] }
func (c *clock) Less(i, j int) bool {
	a, b := &c.events[i], &c.events[j]
	return a.at < b.at || a.at == b.at && a.order < b.order
}

// Push implements [heap.Interface].
func (c *clock) Push(x any) { c.events = append(c.events, x.(event)) }

// Pop implements [heap.Interface].
func (c *clock) Pop() any {
	last := c.events[len(c.events)-1]
	c.events = c.events[:len(c.events)-1]
	return last
}

// after plans do for a time from now on.
func (c *clock) after(d time.Duration, do func()) {
	c.order++
	heap.Push(c, event{at: c.now + d, order: c.order, do: do})
}

// run lets time pass until it is over.
func (c *clock) run(until time.Duration) {
	for len(c.events) > 0 && c.events[0].at <= until {
		e := heap.Pop(c).(event)
		c.now = e.at
		e.do()
	}
	c.now = until
}
