package chunk

import (
	"cmp"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"pgregory.net/rapid"
)

// Values compare as their encodings do, whatever their types.
func TestComparisonAgreesWithEncodings(t *testing.T) {
	t.Parallel()

	check := func(t require.TestingT, a, b any) {
		got, err := CompareValues(rawValue(t, a), rawValue(t, b))
		require.NoError(t, err)
		require.Equal(t, cmp.Compare(encode(t, a), encode(t, b)), got, "%v against %v", a, b)
	}
	var all []any
	for _, class := range ordered {
		all = append(all, class...)
	}
	for _, a := range all {
		for _, b := range all {
			check(t, a, b)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		of := rapid.OneOf(genNumber(), genValue(2),
			rapid.StringOfN(rapid.RuneFrom([]rune{0, 1, 'a', 'é'}), 0, 3, -1).AsAny())
		check(t, of.Draw(t, "a"), of.Draw(t, "b"))
	})
}

// What is no BSON does not compare.
func TestComparisonOfMalformedValues(t *testing.T) {
	t.Parallel()

	text := rawValue(t, "abc")
	for _, bad := range []bson.RawValue{
		{Type: bson.TypeString, Value: []byte{9, 0, 0, 0, 'a', 0}},
		{Type: bson.TypeString, Value: append([]byte{2, 0, 0, 0, 'a', 0}, 'x')},
		{Type: bson.TypeObjectID, Value: []byte{1}},
		{Type: bson.TypeInt32, Value: []byte{1}},
	} {
		good := text
		if bad.Type != good.Type {
			good = bad
		}
		_, err := CompareValues(good, bad)
		require.ErrorIs(t, err, ErrMalformed)
	}
}
