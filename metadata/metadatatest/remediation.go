package metadatatest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"drover/internal/failure"
	"drover/metadata"
)

// remediationCases is what layouts, sightings, runs and the stop switch must do.
var remediationCases = map[string]func(*testing.T, *fleet){
	"OneLayoutForAShard": func(t *testing.T, f *fleet) {
		d := metadata.Declared{Shard: "a", Domain: "cell-1", Layout: []byte(`{"Name": "one"}`), Machines: []byte(`[]`), SetBy: "ann"}
		require.NoError(t, f.DeclareLayout(t.Context(), d, false))
		second := d
		second.Layout = []byte(`{"Name": "two"}`)
		requireFailure(t, f.DeclareLayout(t.Context(), second, false), failure.Invalid, "layout.exists")
		got, err := f.DeclaredLayout(t.Context(), "a")
		require.NoError(t, err)
		require.JSONEq(t, string(d.Layout), string(got.Layout), "a refused layout changes nothing")
		require.NoError(t, f.DeclareLayout(t.Context(), second, true))
		all, err := f.DeclaredLayouts(t.Context())
		require.NoError(t, err)
		require.Len(t, all, 1)
		require.JSONEq(t, string(second.Layout), string(all[0].Layout))
		_, err = f.DeclaredLayout(t.Context(), "b")
		requireFailure(t, err, failure.Invalid, "layout.undeclared")
		d.Shard = "nowhere"
		require.Error(t, f.DeclareLayout(t.Context(), d, false))
	},

	"SightingsRememberSinceWhen": func(t *testing.T, f *fleet) {
		see := func(unhealthy bool, cost int) metadata.ShardHealth {
			h, err := f.SeeHealth(t.Context(), metadata.Sighting{Shard: "a", Unhealthy: unhealthy, Cost: cost})
			require.NoError(t, err)
			return h
		}
		require.NoError(t, f.DeclareLayout(t.Context(), metadata.Declared{Shard: "a", Layout: []byte(`{}`), Machines: []byte(`[]`)}, false))
		silent, err := f.Silent(t.Context(), 0)
		require.NoError(t, err)
		require.Equal(t, []string{"a"}, silent)
		require.Nil(t, see(false, 0).UnhealthySince)
		first := see(true, 5)
		require.NotNil(t, first.UnhealthySince)
		grown := see(true, 9)
		require.Equal(t, first.UnhealthySince, grown.UnhealthySince)
		require.Equal(t, 1, grown.Grown)
		require.Equal(t, 1, see(true, 9).Grown, "the same plan again is no growth, nor an end of it")
		require.Zero(t, see(true, 4).Grown)
		require.Nil(t, see(false, 0).UnhealthySince)
		silent, err = f.Silent(t.Context(), time.Hour)
		require.NoError(t, err)
		require.Empty(t, silent)
	},

	"ObservationsAreKept": func(t *testing.T, f *fleet) {
		got, err := f.Observation(t.Context(), "a")
		require.NoError(t, err)
		require.Nil(t, got)
		for _, moved := range []string{`{"h1": {"state": 1}}`, `{"h1": {"state": 2}}`} {
			require.NoError(t, f.KeepObservation(t.Context(), "a", []byte(moved)))
			got, err = f.Observation(t.Context(), "a")
			require.NoError(t, err)
			require.JSONEq(t, moved, string(got))
		}
		require.Error(t, f.KeepObservation(t.Context(), "nowhere", []byte(`{}`)))
	},

	"RunsAndTheStopSwitch": func(t *testing.T, f *fleet) {
		run := metadata.Remediation{WorkflowID: "remediate/a", Shard: "a", Cost: 37}
		require.NoError(t, f.RecordRemediation(t.Context(), run))
		run.Cost, run.Steps = 4, 3
		require.NoError(t, f.RecordRemediation(t.Context(), run))
		all, err := f.Remediations(t.Context(), 0)
		require.NoError(t, err)
		require.Len(t, all, 1, "one row for one run")
		require.Equal(t, 37, all[0].Cost, "the budget counts the first plan")
		run.Verdict = "finished"
		require.NoError(t, f.RecordRemediation(t.Context(), run))
		all, err = f.Remediations(t.Context(), 0)
		require.NoError(t, err)
		require.Empty(t, all)
		require.NoError(t, f.RecordRemediation(t.Context(), metadata.Remediation{WorkflowID: "remediate/a", Shard: "a"}))
		all, err = f.Remediations(t.Context(), time.Hour)
		require.NoError(t, err)
		require.Len(t, all, 2)
		require.Nil(t, all[0].EndedAt)
		require.NotNil(t, all[1].EndedAt)

		stop, err := f.RemediationStop(t.Context())
		require.NoError(t, err)
		require.Nil(t, stop)
		require.NoError(t, f.StopRemediation(t.Context(), "ann", "first"))
		require.NoError(t, f.StopRemediation(t.Context(), "bob", "second"))
		stop, err = f.RemediationStop(t.Context())
		require.NoError(t, err)
		require.Equal(t, "bob", stop.By)
		require.NoError(t, f.ResumeRemediation(t.Context()))
		stop, err = f.RemediationStop(t.Context())
		require.NoError(t, err)
		require.Nil(t, stop)
	},
}
