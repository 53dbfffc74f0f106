package activities_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/testsuite"

	"drover/activities"
	"drover/chunk"
	"drover/contract"
	"drover/fleet"
)

const desiredFile = `shards:
  - {name: shard-a}
  - {name: shard-b}
  - {name: shard-n, uriEnv: SHARD_N_URI}
databases:
  - name: shop
    quota: {opsPerSecond: 2000}
    collections:
      - {name: orders, shardKey: customer, indexes: [{key: {customer: 1}, name: customer}]}
users:
  - {name: app, grants: [{database: shop, actions: [read]}]}
  - {name: new, passwordEnv: NEW, grants: [{database: shop, actions: [read]}]}
placement:
  databases: [{database: shop, shard: shard-b}]
`

// reconciling is a fleet that lacks what a file asks for; made changes are there.
type reconciling struct {
	books   *balanceBooks
	present fleet.Present
	made    []string
	fail    error // of the first try to make an index
}

// newReconciling has one database without quota, collection and grants.
func newReconciling(t *testing.T) (*reconciling, *testsuite.TestActivityEnvironment) {
	t.Helper()
	r := &reconciling{books: &balanceBooks{desired: desiredFile}, present: fleet.Present{
		Shards:    []chunk.Shard{{Name: "shard-a"}, {Name: "shard-b"}},
		Databases: []chunk.Database{{Name: "shop", KeySpace: chunk.Hashed}},
		Policies:  map[string][]byte{}, Users: map[string]map[string][]string{"app": {}},
	}}
	a := &activities.Reconciler{
		Balancer: &activities.Balancer{Ledger: r.books, Sizes: func(context.Context, chunk.Shard, string) (int64, error) { return 1000, nil }},
		Present:  func(context.Context) (fleet.Present, error) { return r.present, nil },
		Make:     r.make,
	}
	env := new(testsuite.WorkflowTestSuite).NewTestActivityEnvironment()
	a.Register(env, contract.ControlQueue)
	a.Register(env, contract.BulkQueue)
	return r, env
}

// make makes a change in memory.
func (r *reconciling) make(_ context.Context, f *fleet.File, c fleet.Change) error {
	d, _ := f.Database(c.Subject)
	switch c.Kind {
	case fleet.CreateCollection:
		made := d.Collections[0].Collection
		made.Indexes = nil
		r.present.Databases[0].Collections = append(r.present.Databases[0].Collections, made)
	case fleet.CreateIndex:
		if err := r.fail; err != nil {
			r.fail = nil
			return err
		}
		r.present.Databases[0].Collections[0].Indexes = d.Collections[0].Indexes
	case fleet.SetQuota:
		r.present.Policies[c.Subject] = d.Policy
	case fleet.GrantUser:
		r.present.Users[c.Subject] = map[string][]string{c.Database: c.Actions}
	}
	r.made = append(r.made, c.Kind)
	return nil
}

// TestMissingIsMadeOnce, in its order; one that was interrupted goes on where it stood.
func TestMissingIsMadeOnce(t *testing.T) {
	t.Parallel()

	r, env := newReconciling(t)
	r.fail = errors.New("the primary stepped down")
	look := reconcileLook(t, env, contract.LookAtDesired.Name, contract.None{})
	require.Equal(t, int64(1), look.Version)
	kinds := func(l contract.ReconcileLook) (out []string) {
		for _, c := range l.Missing {
			out = append(out, c.Kind)
		}
		return out
	}
	all := []string{fleet.CreateCollection, fleet.CreateIndex, fleet.SetQuota, fleet.GrantUser}
	require.Equal(t, all, kinds(look))
	require.Len(t, look.Refusals, 3, "what needs a secret is a person's: a shard, a user and what that user is granted")
	require.Empty(t, r.made, "a look changes nothing")

	_, err := env.ExecuteActivity(contract.MakeMissing.Name, look)
	require.ErrorContains(t, err, "fleet.not_made: index.create shop: the primary stepped down")
	require.Equal(t, all[:1], r.made)
	left := reconcileLook(t, env, contract.MakeMissing.Name, look)
	require.Equal(t, all, r.made)
	require.Empty(t, left.Missing)
	require.Len(t, left.Refusals, 3)

	look.Version--
	_, err = env.ExecuteActivity(contract.MakeMissing.Name, look)
	require.ErrorContains(t, err, "fleet.file_changed")
}

// reconcileLook runs an activity that gives a look.
func reconcileLook(t *testing.T, env *testsuite.TestActivityEnvironment, name string, in any) (look contract.ReconcileLook) {
	t.Helper()
	v, err := env.ExecuteActivity(name, in)
	require.NoError(t, err)
	require.NoError(t, v.Get(&look))
	return look
}

// TestRulesAreFollowedWithoutCoolDown; without a file nothing is wanted.
func TestRulesAreFollowedWithoutCoolDown(t *testing.T) {
	t.Parallel()

	r, env := newReconciling(t)
	v, err := env.ExecuteActivity(contract.PlanReconcile.Name, contract.ReconcileInput{})
	require.NoError(t, err)
	var plan contract.FleetPlan
	require.NoError(t, v.Get(&plan))
	require.Len(t, plan.Moves, 4, "one of them came just now")
	require.Equal(t, "shard-b", plan.Moves[0].To)

	r.books.desired = ""
	look := reconcileLook(t, env, contract.LookAtDesired.Name, contract.None{})
	require.Zero(t, look.Version)
}

// TestFileThatDoesNotFitAnyMoreIsNamed: the fleet has a database that the file lacks. That
// is what was found, and no failure of the look.
func TestFileThatDoesNotFitAnyMoreIsNamed(t *testing.T) {
	t.Parallel()

	r, env := newReconciling(t)
	r.present.Databases = append(r.present.Databases, chunk.Database{Name: "later", KeySpace: chunk.Hashed})
	v, err := env.ExecuteActivity(contract.LookAtDesired.Name, contract.None{})
	require.NoError(t, err)
	var look contract.ReconcileLook
	require.NoError(t, v.Get(&look))
	require.Contains(t, look.Refused, "later")
	require.Empty(t, look.Missing)
	v, err = env.ExecuteActivity(contract.MakeMissing.Name, look)
	require.NoError(t, err)
	var left contract.ReconcileLook
	require.NoError(t, v.Get(&left))
	require.Equal(t, look, left)
	require.Empty(t, r.made)
}
