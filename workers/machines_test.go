package workers

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/chunk"
	"drover/internal/failure"
	"drover/metadata/metadatatest"
	"drover/remediation"
	"drover/shard"
	"drover/shard/shardsim"
)

// TestMachinesAreComparedWithTheSet: a layout is declared for the set that is there.
// A set that does not answer, and machines that are another set's, are refused.
func TestMachinesAreComparedWithTheSet(t *testing.T) {
	t.Parallel()

	const secret = "the fleet's secret"
	store, _ := metadatatest.OpenDSN(t)
	sim, err := shardsim.New(shardsim.Options{Auto: true, Members: []shardsim.Member{{Votes: 1, Priority: 2}, {Votes: 1, Priority: 1}, {Votes: 1, Priority: 1}}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, sim.Close()) })
	sim.AddUser(chunk.AdminUser, shard.Password(secret, "s1", chunk.AdminUser),
		bson.D{{Key: "resource", Value: bson.D{{Key: "cluster", Value: true}}}, {Key: "actions", Value: bson.A{"replSetGetStatus", "replSetGetConfig", "serverStatus"}}})
	sim.Advance(time.Minute)
	require.NoError(t, store.AddShard(t.Context(), chunk.Shard{Name: "s1", URI: sim.URI(), Capabilities: chunk.Capabilities{SetName: "rs"}}))
	var machines []remediation.Machine
	for _, host := range sim.Hosts() {
		machines = append(machines, remediation.Machine{Host: host, Zone: "a"})
	}
	require.NoError(t, CheckMachines(t.Context(), store, secret, "s1", append(machines, remediation.Machine{Host: "spare:1", Zone: "a"})))

	machines[2].Host = "elsewhere:27017"
	err = CheckMachines(t.Context(), store, secret, "s1", machines)
	require.True(t, failure.HasCode(err, "layout.foreign_set"), "%v", err)
	require.ErrorContains(t, err, "machines: "+sim.Hosts()[2]+" is a member of shard s1 and not among them")

	for _, host := range sim.Hosts() {
		sim.Kill(host)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	err = CheckMachines(ctx, store, secret, "s1", machines)
	require.True(t, failure.HasCode(err, "layout.unreachable"), "%v", err)
}
