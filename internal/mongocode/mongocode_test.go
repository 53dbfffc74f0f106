package mongocode_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/topology"

	"drover/internal/mongocode"
)

// raw encodes a document that cannot fail to encode.
func raw(t *testing.T, d bson.D) bson.Raw {
	t.Helper()
	b, err := bson.Marshal(d)
	require.NoError(t, err)
	return b
}

func TestPredicatesSeeThroughWrapping(t *testing.T) {
	t.Parallel()

	command := func(code int32, labels ...string) error {
		return fmt.Errorf("outer: %w", mongo.CommandError{Code: code, Labels: labels})
	}
	for name, tc := range map[string]struct {
		is  func(error) bool
		err error
	}{
		"unauthorized":     {mongocode.IsUnauthorized, command(13)},
		"in a write":       {mongocode.IsUnauthorized, mongo.WriteException{WriteErrors: mongo.WriteErrors{{Code: 13}}}},
		"out of time":      {mongocode.IsSpent, command(50)},
		"out of memory":    {mongocode.IsSpent, command(292)},
		"role not found":   {mongocode.IsRoleNotFound, command(31)},
		"role exists":      {mongocode.IsRoleExists, command(51002)},
		"user exists":      {mongocode.IsUserExists, command(51003)},
		"stepped down":     {mongocode.IsNotPrimary, command(189)},
		"write concern":    {mongocode.IsNotPrimary, mongo.WriteException{WriteConcernError: &mongo.WriteConcernError{Code: 91}}},
		"history":          {mongocode.IsHistoryLost, command(286)},
		"transient":        {mongocode.IsTransientTransaction, command(112, mongocode.LabelTransientTransaction)},
		"network label":    {mongocode.IsNetwork, command(0, mongocode.LabelNetwork)},
		"network selected": {mongocode.IsNetwork, fmt.Errorf("x: %w", topology.ServerSelectionError{Wrapped: context.DeadlineExceeded})},
		"bulk duplicate": {mongocode.IsDuplicateKey, mongo.BulkWriteException{
			WriteErrors: []mongo.BulkWriteError{{WriteError: mongo.WriteError{Code: 11000}}},
		}},
	} {
		require.True(t, tc.is(tc.err), name)
		require.False(t, tc.is(nil), name)
		require.False(t, tc.is(mongo.CommandError{Code: 2}), name)
	}
	require.Empty(t, mongocode.Codes(command(0)), "zero is no code")
}

func TestDuplicatesSayWhichIndex(t *testing.T) {
	t.Parallel()

	onID := raw(t, bson.D{{Key: "keyPattern", Value: bson.D{{Key: "_id", Value: 1}}}, {Key: "keyValue", Value: bson.D{{Key: "_id", Value: 7}}}})
	onUnique := raw(t, bson.D{{Key: "keyPattern", Value: bson.D{{Key: "_id", Value: 1}, {Key: "u", Value: 1}}}})
	err := mongo.BulkWriteException{WriteErrors: []mongo.BulkWriteError{
		{WriteError: mongo.WriteError{Index: 1, Code: 11000, Raw: onID}},
		{WriteError: mongo.WriteError{Index: 2, Code: 121}},
		{WriteError: mongo.WriteError{Index: 4, Code: 11000, Raw: onUnique}},
	}}

	found := mongocode.Duplicates(err)
	require.Len(t, found, 2)
	require.True(t, found[0].OnID())
	require.Equal(t, 1, found[0].Index)
	require.False(t, found[1].OnID())
	require.Equal(t, 4, found[1].Index)
	require.Nil(t, found[1].Value)

	found = mongocode.Duplicates(mongo.CommandError{Code: 11000, Raw: onID})
	require.Len(t, found, 1)
	require.True(t, found[0].OnID())
	require.False(t, mongocode.Duplicate{}.OnID(), "unknown is not _id")
}
