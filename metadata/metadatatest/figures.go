package metadatatest

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"drover/chunk"
	"drover/metadata"
)

// figureCases are about the numbers that alarms and the console show.
var figureCases = map[string]func(*testing.T, *fleet){
	"NothingHappens": func(t *testing.T, f *fleet) {
		got, err := f.Figures(t.Context())
		require.NoError(t, err)
		require.Empty(t, got.Moves)
		require.Zero(t, got.Overdue)
		require.Zero(t, got.Proxies)
		require.Equal(t, map[string]int64{"a": 0, "b": 0, "c": 0}, got.Stragglers)
		require.Len(t, got.Captures, 3)
		past, err := f.Past(t.Context())
		require.NoError(t, err)
		require.Equal(t, metadata.Past{}, past)
	},

	// Nobody would see what is written behind the fences of a shard that no capture reads.
	"ShardThatWasNeverCapturedIsSilentSinceItWasAdded": func(t *testing.T, f *fleet) {
		require.NoError(t, f.exec(t, `update shards set added_at = added_at - interval '1 hour' where name = 'b'`))
		got, err := f.Figures(t.Context())
		require.NoError(t, err)
		require.Equal(t, "b", got.Captures[1].Shard)
		require.GreaterOrEqual(t, got.Captures[1].Silence, time.Hour.Seconds())
	},

	"WritesThatWaitedThisMonth": func(t *testing.T, f *fleet) {
		waited := func() float64 {
			got, err := f.Figures(t.Context())
			require.NoError(t, err)
			require.Len(t, got.Waited, 1)
			require.Equal(t, "flights", got.Waited[0].Database)
			return got.Waited[0].Seconds
		}
		require.Zero(t, waited())
		a := f.switchOver(t, f.switching(t))
		set := func(fencing, open string) {
			require.NoError(t, f.exec(t, `alter table attempts disable trigger user`))
			require.NoError(t, f.exec(t, `update attempts set timeline = jsonb_build_array(
				jsonb_build_object('state', 'fencing', 'at', `+fencing+`), jsonb_build_object('state', 'open', 'at', `+open+`)) where id = $1`, a.ID))
			require.NoError(t, f.exec(t, `alter table attempts enable trigger user`))
		}
		const month = `date_trunc('month', clock_timestamp(), 'UTC')`
		set(month+` + interval '1 ms'`, month+` + interval '501 ms'`)
		require.InDelta(t, 0.5, waited(), 1e-6)
		all, err := f.Windows(t.Context(), 40*24*time.Hour)
		require.NoError(t, err)
		require.Equal(t, []metadata.Window{{Seconds: 0.5, Published: true}}, all)
		none, err := f.Windows(t.Context(), time.Nanosecond)
		require.NoError(t, err)
		require.Empty(t, none, "that is longer ago")
		set(month+` - interval '3 s'`, month+` + interval '250 ms'`)
		require.InDelta(t, 0.25, waited(), 1e-6, "what was before the month does not count")
		set(month+` - interval '3 s'`, month+` - interval '1 s'`)
		require.Zero(t, waited())
	},

	"MoveShowsItself": func(t *testing.T, f *fleet) {
		m := f.switching(t)
		require.NoError(t, f.SetAttention(t.Context(), m.ID, "look"))
		require.NoError(t, f.SetWords(t.Context(), metadata.Word{Migration: m.ID, Lanes: json.RawMessage(`{"lagMS": 3}`)}))
		require.NoError(t, f.SaveVerification(t.Context(), metadata.Verification{Migration: m.ID, State: []byte{1}, Report: json.RawMessage(`{"verified": 8}`)}))
		require.NoError(t, f.RecordMismatches(t.Context(), m.ID, []metadata.Mismatch{{Collection: "legs", Kind: "missing"}}))
		require.NoError(t, f.exec(t, `update migrations set lanes_at = lanes_at - interval '7 seconds'`))
		require.NoError(t, f.exec(t, `update verifications set at = at - interval '1 minute'`))
		got, err := f.Figures(t.Context())
		require.NoError(t, err)
		require.Len(t, got.Moves, 1)
		shown := got.Moves[0]
		require.Equal(t, []any{m.ID, first, chunk.Switching, "look", int64(1)}, []any{shown.Migration, shown.Chunk, shown.Phase, shown.Attention, shown.Mismatches})
		require.GreaterOrEqual(t, *shown.LanesAge, 7.0)
		require.GreaterOrEqual(t, *shown.ReportAge, 60.0)
		require.Positive(t, shown.ServedFor)
		require.JSONEq(t, `{"verified": 8}`, string(shown.Report))
	},

	"OverdueAttemptsAndLeases": func(t *testing.T, f *fleet) {
		m := f.switching(t)
		a, err := f.BeginAttempt(t.Context(), m.ID, "k", time.Minute)
		require.NoError(t, err)
		f.advance(t, a.ID, chunk.Preparing, chunk.Fencing, time.Millisecond)
		f.awaitOverdue(t, a.ID)
		_, err = f.AcquireLease(t.Context(), "b", "ann", metadata.ExclusiveLease, time.Minute)
		require.NoError(t, err)
		require.NoError(t, f.exec(t, `update leases set expires_at = expires_at - interval '10 minutes'`))
		require.NoError(t, f.SeeProxy(t.Context(), metadata.Proxy{ID: "p1", Address: "127.0.0.1:1", Hold: time.Second}))
		require.NoError(t, f.AddStraggler(t.Context(), metadata.Straggler{Shard: "a", Placement: 1, Seq: 4, Kind: "insert", Event: []byte("x")}))
		got, err := f.Figures(t.Context())
		require.NoError(t, err)
		require.Positive(t, got.Overdue)
		require.Equal(t, 1, got.Proxies)
		require.Equal(t, int64(1), got.Stragglers["a"])
		require.Len(t, got.Leases, 1, "an expired one is shown")
		require.Less(t, got.Leases[0].Left, -500.0)
	},

	"RollbacksAreRemembered": func(t *testing.T, f *fleet) {
		m := f.switching(t)
		f.switchOver(t, m)
		f.walk(t, m.ID, chunk.Switching, chunk.BurnIn)
		f.switchOver(t, m)
		past, err := f.Past(t.Context())
		require.NoError(t, err)
		require.Equal(t, []int{2, 1, 0}, []int{past.Switches, past.Rollbacks, past.WentBack})
		require.NotNil(t, past.Rollback)
	},
}
