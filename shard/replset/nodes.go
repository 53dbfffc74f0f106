package replset

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"time"

	"drover/internal/failure"
)

// Node is a node that is to be made, or given up.
type Node struct {
	Shard, Set string
	Host       string
	Source     string // a member that the copy is best made from; may be empty
	OplogMB    int    // 0: the machine's own
	Arbiter    bool
}

// Nodes makes nodes anew and gives them up. Each call may be repeated, and returns
// when the node's process has been started (or stopped): the copy itself is
// watched elsewhere.
type Nodes interface {
	// Rebuild stops a member's node, empties it, and starts it again.
	Rebuild(ctx context.Context, n Node) error
	// Provision starts an empty node of the set on a spare machine.
	Provision(ctx context.Context, n Node) error
	// Release stops a node that has left its set, and empties it.
	Release(ctx context.Context, n Node) error
}

// Exec makes nodes by commands of the operator's. Each is run with what is to be
// done in its environment: DROVER_ACTION (rebuild, provision, release),
// DROVER_SHARD, DROVER_SET, DROVER_HOST, DROVER_SOURCE, DROVER_OPLOG_MB (0: as the
// machine has it) and DROVER_ARBITER (true, false). Exit status 0 means done.
type Exec struct {
	RebuildCommand, ProvisionCommand, ReleaseCommand []string
	Limit                                            time.Duration // for one command; 10 min
}

// Rebuild implements [Nodes].
func (e Exec) Rebuild(ctx context.Context, n Node) error {
	return e.run(ctx, "rebuild", e.RebuildCommand, n)
}

// Provision implements [Nodes].
func (e Exec) Provision(ctx context.Context, n Node) error {
	return e.run(ctx, "provision", e.ProvisionCommand, n)
}

// Release implements [Nodes].
func (e Exec) Release(ctx context.Context, n Node) error {
	return e.run(ctx, "release", e.ReleaseCommand, n)
}

// run runs one command to its end. Its output is part of the error.
func (e Exec) run(ctx context.Context, action string, command []string, n Node) error {
	if len(command) == 0 {
		return failure.New(failure.Invalid, "remediation.no_hook", "no command is configured to %s a node", action).
			WithHint("configure one, see docs/remediation.md")
	}
	limit := e.Limit
	if limit == 0 {
		limit = 10 * time.Minute
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, command[0], command[1:]...) //nolint:gosec // the operator's own configuration
	cmd.Env = append(os.Environ(),
		"DROVER_ACTION="+action, "DROVER_SHARD="+n.Shard, "DROVER_SET="+n.Set, "DROVER_HOST="+n.Host, "DROVER_SOURCE="+n.Source,
		"DROVER_OPLOG_MB="+strconv.Itoa(n.OplogMB), "DROVER_ARBITER="+strconv.FormatBool(n.Arbiter))
	cmd.WaitDelay = 10 * time.Second
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		tail := out.Bytes()
		tail = tail[max(0, len(tail)-2000):]
		return fmt.Errorf("%s %s by %s: %w: %s", action, n.Host, command[0], err, bytes.TrimSpace(tail))
	}
	return nil
}
