package shard

import (
	"context"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/chunk"
	"drover/internal/mongocode"
)

// unread are the sections of serverStatus that nobody here needs: a server that is told
// so does not make them.
var unread = []string{ //nolint:gochecknoglobals // a constant
	"asserts", "connections", "defaultRWConcern", "electionMetrics", "flowControl", "globalLock", "indexBuilds", "locks", "logicalSessionRecordCache",
	"metrics", "mirroredReads", "network", "opcountersRepl", "repl", "security", "storageEngine", "tcmalloc", "transactions", "twoPhaseCommitCoordinator", "wiredTiger",
}

// Counters reads what the primary has counted of its CPU and of how long operations
// took: one command. How many cores it has is asked too unless an earlier reading of the
// same host knows. What the server does not tell stays unknown, and is no error.
func (s *Set) Counters(ctx context.Context, before chunk.Counters) (chunk.Counters, error) {
	cmd := bson.D{{Key: "serverStatus", Value: 1}}
	for _, section := range unread {
		cmd = append(cmd, bson.E{Key: section, Value: 0})
	}
	r, err := s.adminRun(ctx, cmd)
	if err != nil {
		return chunk.Counters{}, s.wrap(err, "read the counters")
	}
	c := chunk.Counters{
		Host: text(r, "host"), Up: time.Duration(lookup(r, "uptimeMillis")) * time.Millisecond,
		CPU:    time.Duration(lookup(r, "extra_info", "user_time_us")+lookup(r, "extra_info", "system_time_us")) * time.Microsecond,
		Writes: latency(r, "writes"), Reads: latency(r, "reads"),
	}
	if at, ok := r.Lookup("localTime").TimeOK(); ok {
		c.At = at.UTC()
	}
	var unknown []string
	if c.CPU == 0 {
		unknown = append(unknown, "CPU: the server does not count it")
	} else if c.Cores = before.Cores; c.Cores == 0 || before.Host != c.Host {
		info, err := s.adminRun(ctx, bson.D{{Key: "hostInfo", Value: 1}})
		if c.Cores = int(lookup(info, "system", "numCores")); err != nil && !mongocode.IsUnauthorized(err) {
			return c, s.wrap(err, "ask for the number of cores")
		}
		if mongocode.IsUnauthorized(err) {
			unknown = append(unknown, "CPU: Drover's user may not ask for the number of cores; `drover shard add` again repairs its role")
		} else if c.Cores == 0 {
			unknown = append(unknown, "CPU: the server does not say how many cores it has")
		}
	}
	if _, err := r.LookupErr("opLatencies"); err != nil {
		unknown = append(unknown, "latency: the server does not count it")
	}
	c.Unknown = strings.Join(unknown, "; ")
	return c, nil
}

// latency reads one kind of operation; its time is in microseconds.
func latency(r bson.Raw, kind string) chunk.Latency {
	return chunk.Latency{
		Ops:  lookup(r, "opLatencies", kind, "ops"),
		Time: time.Duration(lookup(r, "opLatencies", kind, "latency")) * time.Microsecond,
	}
}
