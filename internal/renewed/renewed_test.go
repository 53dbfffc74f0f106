package renewed

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// secret writes a folder of two files as a mounted secret has them, all of one age.
func secret(t *testing.T, dir, cert, key string) {
	t.Helper()
	require.NoError(t, os.Mkdir(dir, 0o700))
	for name, text := range map[string]string{"cert": cert, "key": key} {
		file := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		require.NoError(t, os.Chtimes(file, time.Unix(1, 0), time.Unix(1, 0)))
	}
}

// TestWhatIsRenewedIsReadAnew, whichever way it is put there, and once; what is broken, gone or half
// done leaves the last good one.
func TestWhatIsRenewedIsReadAnew(t *testing.T) {
	t.Parallel()

	dir := t.TempDir()
	data, next := filepath.Join(dir, "..data"), filepath.Join(dir, "..next")
	swap := func(to string) {
		require.NoError(t, os.Symlink(to, next))
		require.NoError(t, os.Rename(next, data))
	}
	for name, text := range map[string][2]string{"1": {"a", "a"}, "2": {"b", "b"}, "half": {"c", "b"}, "empty": {"", ""}} {
		secret(t, filepath.Join(dir, name), text[0], text[1])
	}
	made := 0
	var k Kept[string]
	get := func() (string, error) {
		got, err := k.Get(func(contents [][]byte) (*string, error) {
			if made++; string(contents[0]) != string(contents[1]) || len(contents[0]) == 0 {
				return nil, errors.New("they do not fit")
			}
			text := string(contents[0])
			return &text, nil
		}, filepath.Join(data, "cert"), filepath.Join(data, "key"))
		if err != nil {
			return "", err
		}
		return *got, nil
	}
	_, err := get()
	require.ErrorIs(t, err, os.ErrNotExist)

	for _, step := range []struct {
		to, want string
		made     int
	}{{"1", "a", 1}, {"1", "a", 1}, {"2", "b", 2}, {"half", "b", 3}, {"empty", "b", 4}, {"none", "b", 4}, {"2", "b", 4}, {"1", "a", 5}} {
		swap(step.to)
		got, err := get()
		require.NoError(t, err)
		require.Equal(t, step.want, got, step.to)
		require.Equal(t, step.made, made, step.to)
	}
}
