package replset

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/internal/failure"
	"drover/internal/mongocode"
	"drover/remediation"
)

// standAside is for how long others are kept from standing while the office changes.
const standAside = 60

// wrap types what a command came to. What needs other privileges cannot succeed by
// trying again; anything else may, once the shard has been read again.
func (r *ReplicaSet) wrap(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	what := fmt.Sprintf(format, args...)
	if mongocode.IsUnauthorized(err) {
		return failure.New(failure.Invalid, "shard.unauthorized", "%s on shard %s: %w", what, r.shard.Name, err).
			WithHint("run `drover shard add` again for shard %s: it repairs Drover's roles", r.shard.Name)
	}
	return failure.New(failure.Transient, "remediation.refused", "%s on shard %s: %w", what, r.shard.Name, err)
}

// Reconfigure implements [remediation.Hands].
//
// Before: the newest configuration is the one of the last reading, by (term,
// version). After: a majority has the next version, or the primary has it alone and
// the answer is an error. If interrupted: either may be; read again.
func (r *ReplicaSet) Reconfigure(ctx context.Context, e remediation.Edit) error {
	host, seen := r.primary()
	if host == "" {
		return failure.New(failure.Transient, "remediation.no_primary", "shard %s has no primary to take a configuration", r.shard.Name)
	}
	raw, err := r.run(ctx, host, bson.D{{Key: "replSetGetConfig", Value: 1}})
	if err != nil {
		return r.wrap(err, "read the configuration from %s", host)
	}
	var now configuration
	if err := bson.Unmarshal(raw, &now); err != nil {
		return r.wrap(err, "read the configuration from %s", host)
	}
	if now.Config.Term != seen.Term || now.Config.Version != seen.Version {
		return failure.New(failure.Transient, "remediation.config_changed", "configuration of shard %s is at (%d, %d), it was read at (%d, %d)",
			r.shard.Name, now.Config.Term, now.Config.Version, seen.Term, seen.Version)
	}
	next, err := edited(raw.Lookup("config").Document(), now, e)
	if err != nil {
		return r.wrap(err, "edit the configuration")
	}
	_, err = r.runFor(ctx, r.opts.Confirm, host, "admin", bson.D{{Key: "replSetReconfig", Value: next}})
	return r.wrap(err, "change the configuration at %s", host)
}

// edited gives the next version of a configuration. All that an edit does not name
// stays as it is, fields that are not known here too.
func edited(raw bson.Raw, now configuration, e remediation.Edit) (bson.D, error) {
	var given struct {
		Members []bson.D `bson:"members"`
	}
	var whole bson.D
	if err := errors.Join(bson.Unmarshal(raw, &whole), bson.Unmarshal(raw, &given)); err != nil {
		return nil, fmt.Errorf("decode: %w", err)
	}
	var members bson.A
	var top int64
	for i, m := range now.Config.Members {
		top = max(top, m.ID)
		if slices.Contains(e.Remove, m.Host) {
			continue
		}
		d := given.Members[i]
		for _, to := range e.Set {
			if to.Host == m.Host {
				d = set(d, to)
			}
		}
		members = append(members, d)
	}
	for _, a := range e.Add {
		top++
		d := bson.D{{Key: "_id", Value: top}, {Key: "host", Value: a.Host}}
		if a.Arbiter {
			d = append(d, bson.E{Key: "arbiterOnly", Value: true})
		}
		members = append(members, set(d, a))
	}
	for i := range whole {
		switch whole[i].Key {
		case "version":
			whole[i].Value = now.Config.Version + 1
		case "members":
			whole[i].Value = members
		}
	}
	return whole, nil
}

// set writes what an edit is about into a member's entry.
func set(d bson.D, to remediation.Member) bson.D {
	for _, e := range []bson.E{
		{Key: "votes", Value: to.Votes}, {Key: "priority", Value: to.Priority}, {Key: "hidden", Value: to.Hidden},
		{Key: "secondaryDelaySecs", Value: int64(to.Delay / time.Second)},
	} {
		if i := slices.IndexFunc(d, func(x bson.E) bool { return x.Key == e.Key }); i >= 0 {
			d[i].Value = e.Value
		} else {
			d = append(d, e)
		}
	}
	return d
}

// StepDown implements [remediation.Hands]. Others are kept from standing first, for
// a minute; who does not answer cannot stand either. Where the office does not
// change they may stand again at once: the set may need one of them.
func (r *ReplicaSet) StepDown(ctx context.Context, from, to string) error {
	var rivals []string
	_, seen := r.primary()
	for _, m := range seen.Members {
		if m.Host != from && !m.Arbiter && m.Priority > 0 {
			rivals = append(rivals, m.Host)
		}
	}
	for _, host := range rivals {
		seconds := standAside
		if host == to {
			seconds = 0
		}
		if err := r.freeze(ctx, host, seconds); err != nil {
			return errors.Join(err, r.thaw(ctx, rivals))
		}
	}
	_, err := r.runFor(ctx, r.opts.Confirm, from, "admin", bson.D{
		{Key: "replSetStepDown", Value: standAside}, {Key: "secondaryCatchUpPeriodSecs", Value: int(r.opts.Confirm / time.Second / 2)},
	})
	if mongocode.IsNetwork(err) || mongocode.IsNotPrimary(err) { // it may have closed the connection by stepping down
		return nil //nolint:nilerr // reading the shard tells
	}
	if err != nil {
		return errors.Join(r.wrap(err, "step down %s", from), r.thaw(ctx, rivals))
	}
	return nil
}

// freeze keeps a member from standing for so many seconds; 0 lets it stand again.
func (r *ReplicaSet) freeze(ctx context.Context, host string, seconds int) error {
	_, err := r.run(ctx, host, bson.D{{Key: "replSetFreeze", Value: seconds}})
	if err != nil && !mongocode.IsNetwork(err) {
		return r.wrap(err, "keep %s from standing for %d s", host, seconds)
	}
	return nil
}

// thaw lets members stand again, also when the caller has given up.
func (r *ReplicaSet) thaw(ctx context.Context, hosts []string) error {
	var errs []error
	for _, host := range hosts {
		errs = append(errs, r.freeze(context.WithoutCancel(ctx), host, 0))
	}
	return errors.Join(errs...)
}

// ResizeOplog implements [remediation.Hands].
func (r *ReplicaSet) ResizeOplog(ctx context.Context, host string, mb int) error {
	_, err := r.run(ctx, host, bson.D{{Key: "replSetResizeOplog", Value: 1}, {Key: "size", Value: float64(mb)}})
	return r.wrap(err, "resize the oplog of %s", host)
}

// Rebuild implements [remediation.Hands].
func (r *ReplicaSet) Rebuild(ctx context.Context, b remediation.Build) error {
	return r.make(ctx, b, Nodes.Rebuild)
}

// Provision implements [remediation.Hands].
func (r *ReplicaSet) Provision(ctx context.Context, b remediation.Build) error {
	return r.make(ctx, b, Nodes.Provision)
}

// make lets the hook make a node, and then points it at its source, which is only
// a wish: the hook knows it too, and a node that has no users yet takes no command.
func (r *ReplicaSet) make(ctx context.Context, b remediation.Build, how func(Nodes, context.Context, Node) error) error {
	if err := r.hook(b.Host, func(n Nodes) error { return how(n, ctx, r.describe(b)) }); err != nil {
		return err
	}
	r.forget(ctx, b.Host)
	if b.Source != "" && !b.Arbiter {
		_, _ = r.run(ctx, b.Host, bson.D{{Key: "replSetSyncFrom", Value: b.Source}})
	}
	return nil
}

// Release implements [remediation.Hands].
func (r *ReplicaSet) Release(ctx context.Context, host string) error {
	err := r.hook(host, func(n Nodes) error { return n.Release(ctx, r.describe(remediation.Build{Host: host})) })
	r.forget(ctx, host)
	return err
}

// describe is what a hook is told.
func (r *ReplicaSet) describe(b remediation.Build) Node {
	return Node{Shard: r.shard.Name, Set: r.Set(), Host: b.Host, Source: b.Source, OplogMB: b.OplogMB, Arbiter: b.Arbiter}
}

// hook calls what makes nodes, and types its error.
func (r *ReplicaSet) hook(host string, call func(n Nodes) error) error {
	if r.opts.Nodes == nil {
		return failure.New(failure.Invalid, "remediation.no_hook", "nothing is configured that makes nodes of shard %s anew", r.shard.Name).
			WithHint("configure the commands that rebuild, provision and release a node, see docs/remediation.md")
	}
	err := call(r.opts.Nodes)
	if err == nil || failure.Is(err, failure.Invalid) {
		return err
	}
	return failure.New(failure.Transient, "remediation.hook_failed", "node %s of shard %s: %w", host, r.shard.Name, err)
}
