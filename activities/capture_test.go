package activities

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"drover/metadata"
)

// TestArchiveKeepsWhatAMoveNeeds: retention never reaches behind the beginning of
// an open move, burn-in included.
func TestArchiveKeepsWhatAMoveNeeds(t *testing.T) {
	t.Parallel()

	limit := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
	require.Equal(t, limit, keepFrom(limit, nil, nil))
	young := metadata.Migration{CreatedAt: limit.Add(48 * time.Hour)}
	require.Equal(t, limit, keepFrom(limit, []metadata.Migration{young}, nil))
	old := metadata.Migration{CreatedAt: limit.Add(-48 * time.Hour)}
	require.Equal(t, old.CreatedAt.Add(-keepMargin), keepFrom(limit, []metadata.Migration{young, old}, nil))
	clone := metadata.Clone{KeepFrom: limit.Add(-72 * time.Hour)}
	require.Equal(t, clone.KeepFrom.Add(-keepMargin), keepFrom(limit, []metadata.Migration{old}, []metadata.Clone{clone}), "what an open clone reads stays")
	require.Equal(t, limit, keepFrom(limit, nil, []metadata.Clone{{KeepFrom: limit.Add(48 * time.Hour)}}))
}
