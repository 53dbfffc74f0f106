package shardsim

import (
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// Work is what a member has counted since it started. Without CPU and cores it counts as
// a server that does not tell them.
type Work struct {
	CPU                 time.Duration // user and system
	Cores               int
	Writes, Reads       int64
	WriteTime, ReadTime time.Duration
}

// SetWork says what the primary has counted, and since when it runs.
func (s *Set) SetWork(w Work, up time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.head()
	n.work, n.started = w, s.now.Add(-up)
}

// serverStatus answers what tools read, without the sections that nobody here reads.
func (c *conn) serverStatus(Call) bson.D {
	n := c.node
	kind := func(ops int64, took time.Duration) bson.D {
		return bson.D{{Key: "latency", Value: took.Microseconds()}, {Key: "ops", Value: ops}}
	}
	extra := bson.D{{Key: "note", Value: "fields vary by platform"}}
	if n.work.CPU > 0 {
		extra = append(extra, bson.E{Key: "user_time_us", Value: n.work.CPU.Microseconds() / 2}, bson.E{Key: "system_time_us", Value: n.work.CPU.Microseconds() / 2})
	}
	return append(bson.D{
		{Key: "host", Value: n.host}, {Key: "version", Value: "8.0.0"}, {Key: "process", Value: "mongod"},
		{Key: "uptimeMillis", Value: n.set.now.Sub(n.started).Milliseconds()}, {Key: "localTime", Value: n.set.now}, {Key: "extra_info", Value: extra},
		{Key: "opLatencies", Value: bson.D{{Key: "reads", Value: kind(n.work.Reads, n.work.ReadTime)}, {Key: "writes", Value: kind(n.work.Writes, n.work.WriteTime)}}},
	}, ok()...)
}

// hostInfo tells how many cores the machine has.
func (c *conn) hostInfo(Call) bson.D {
	return append(bson.D{{Key: "system", Value: bson.D{{Key: "numCores", Value: int32(c.node.work.Cores)}}}}, ok()...) //nolint:gosec // cores are few
}
