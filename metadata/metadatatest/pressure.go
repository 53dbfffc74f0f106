package metadatatest

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"drover/chunk"
)

// pressureCases are about how shards and chunks bear their load.
var pressureCases = map[string]func(*testing.T, *fleet){
	"TimesOfAllProxiesAreAddedUp": func(t *testing.T, f *fleet) {
		for proxy, word := range map[string]string{
			"p1": `[{"placement":77,"requests":9,"spent_us":60000000},{"placement":78,"requests":1,"spent_us":6}]`,
			"p2": `[{"placement":77,"requests":2,"spent_us":30000000}]`,
			"p3": `[{"placement":77,"requests":2}]`, // an older one does not say
		} {
			require.NoError(t, f.SetTraffic(t.Context(), proxy, json.RawMessage(word)))
		}
		times, err := f.Times(t.Context())
		require.NoError(t, err)
		require.InDelta(t, 1.5, times[77], 1e-9)
		require.InDelta(t, 1e-7, times[78], 1e-12)
	},

	"PressureIsThatOfTheNewestReading": func(t *testing.T, f *fleet) {
		share := 0.5
		c := chunk.Counters{Host: "h", At: time.Unix(1000, 0).UTC(), Up: time.Hour, Cores: 4}
		require.NoError(t, f.KeepPressure(t.Context(), "a", chunk.Counters{}, chunk.Pressure{Unknown: "first"}))
		require.NoError(t, f.KeepPressure(t.Context(), "a", c, chunk.Pressure{CPU: &share}))
		require.NoError(t, f.KeepPressure(t.Context(), "gone", c, chunk.Pressure{}), "a shard that was removed meanwhile")
		require.NoError(t, f.exec(t, `update shard_pressures set at = at - interval '1 minute'`))
		kept, err := f.Pressures(t.Context())
		require.NoError(t, err)
		require.Len(t, kept, 1)
		require.Equal(t, c, kept["a"].Counters)
		require.Equal(t, chunk.Pressure{CPU: &share}, kept["a"].Pressure)
		require.GreaterOrEqual(t, kept["a"].Age, time.Minute)
	},

	"ShardsOfMovesThatCopy": func(t *testing.T, f *fleet) {
		m := f.register(t)
		by, err := f.Copying(t.Context())
		require.NoError(t, err)
		require.Len(t, by, 2)
		require.Equal(t, m.WorkflowID, by[m.Source.Shard])
		require.Equal(t, m.WorkflowID, by[m.Target.Shard])
	},

	"HeatIsForgottenWhenNobodyObservesIt": func(t *testing.T, f *fleet) {
		require.NoError(t, f.KeepHeats(t.Context(), map[chunk.ID]json.RawMessage{"db/0001": json.RawMessage(`{"a": 1}`), "db/0002": json.RawMessage(`{}`)}))
		require.NoError(t, f.exec(t, `update chunk_heats set at = at - interval '3 days'`))
		fresh := map[chunk.ID]json.RawMessage{"db/0001": json.RawMessage(`{"a": 2}`), "db/0003": json.RawMessage(`{"a": 3}`)}
		require.NoError(t, f.KeepHeats(t.Context(), fresh))
		all, err := f.Heats(t.Context())
		require.NoError(t, err)
		require.Equal(t, fresh, all)
	},
}
