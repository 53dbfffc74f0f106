package proxy

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// What drivers' ListDatabaseNames(filter) sends was not looked at: every name came back.
func TestListDatabasesFilter(t *testing.T) {
	t.Parallel()

	names := []string{"flights", "payments", "Payroll"}
	for text, want := range map[string][]string{
		`{}`:                   names,
		`{"name": "payments"}`: {"payments"},
		`{"name": {"$regex": "^pay", "$options": "i"}}`:                                {"payments", "Payroll"},
		`{"name": {"$regularExpression": {"pattern": "^pay", "options": ""}}}`:         {"payments"},
		`{"name": {"$in": ["flights", "none"]}}`:                                       {"flights"},
		`{"name": {"$eq": "none"}}`:                                                    {},
		`{"name": {"$in": ["flights", "payments"], "$regex": "s$", "$eq": "flights"}}`: {"flights"},
	} {
		var filter bson.Raw
		require.NoError(t, bson.UnmarshalExtJSON([]byte(text), false, &filter))
		got, refused := namesLike(names, filter)
		require.Nil(t, refused, text)
		require.Equal(t, want, got, text)
	}
	for _, text := range []string{`{"sizeOnDisk": {"$gt": 0}}`, `{"name": 1}`, `{"name": {"$ne": "x"}}`, `{"name": {"$regex": "("}}`} {
		var filter bson.Raw
		require.NoError(t, bson.UnmarshalExtJSON([]byte(text), false, &filter))
		_, refused := namesLike(names, filter)
		require.NotNil(t, refused, text)
		require.Equal(t, codeBadValue, refused.code, text)
	}
}
