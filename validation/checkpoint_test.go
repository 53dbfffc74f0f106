package validation_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/event"
	"drover/validation"
)

// TestValidationGoesOnWhereItStood ends a validation behind each of its checkpoints, with
// slices that are read ahead and cut: another one reads the rest only, and together they
// find what one would have, what differed or changed before the checkpoint too.
func TestValidationGoesOnWhereItStood(t *testing.T) {
	t.Parallel()
	errEnded := errors.New("the worker ended")
	all := docs(95)
	slices.SortFunc(all, func(a, b bson.Raw) int { return cmp.Compare(keyOf(a), keyOf(b)) })
	for _, cut := range []bool{false, true} {
		for stop := 1; ; stop++ {
			w := newWorld()
			w.both("c", all...)
			w.both("d", docs(33)...)
			delete(w.target["c"], keyOf(all[3]))
			delete(w.target["c"], keyOf(all[90]))
			late := raw(bson.D{{Key: "_id", Value: all[5].Lookup("_id")}, {Key: "late", Value: true}})
			marks := 0
			w.onWrite = func() {
				if marks++; marks == 2 { // while the first slice is read
					w.write(event.Replace, late)
				}
			}
			v := w.validator()
			v.Settings.KeepEvery = time.Nanosecond
			if cut {
				v.Cuts = cuts{{At: all[17].Lookup("_id"), Documents: 18}, {At: all[40].Lookup("_id"), Documents: 23}, {At: all[60].Lookup("_id"), Documents: 20}}
			}
			var kept []byte
			n := 0
			v.Keep = func(_ context.Context, c validation.Checkpoint) error {
				var err error
				kept, err = bson.Marshal(c)
				require.NoError(t, err)
				if n++; n == stop {
					return errEnded
				}
				return nil
			}
			w.follow(t)
			_, err := v.Run(t.Context(), []string{"c", "d"})
			if err == nil {
				require.Greater(t, stop, 5, "checkpoints of 128 documents in slices of ten")
				break
			}
			require.ErrorIs(t, err, errEnded)
			var from validation.Checkpoint
			require.NoError(t, bson.Unmarshal(kept, &from))
			behind := from.Collections["c"].Source + from.Collections["d"].Source
			require.Positive(t, behind)
			again := w.validator()
			again.Cuts, again.From = v.Cuts, &from
			result, err := again.Run(t.Context(), []string{"c", "d"})
			require.NoError(t, err)
			name := fmt.Sprintf("behind checkpoint %d, cuts %t", stop, cut)
			require.EqualValues(t, 128, result.Documents, "what was compared is not compared again, %s", name)
			require.EqualValues(t, 126, result.Target, name)
			require.Equal(t, map[validation.Kind]int64{validation.MissingDocument: 2}, result.Kinds, name)
			require.Equal(t, from.First.Marker, result.First.Marker, "changes since the very first marker are for the verification")
		}
	}
}
