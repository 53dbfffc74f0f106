package upstream

import (
	"bytes"
	"net"
	"testing"

	"github.com/stretchr/testify/require"

	"drover/proxy/wire"
)

// listConn keeps what is written to it, write by write.
type listConn struct {
	net.Conn

	writes [][]byte
}

func (c *listConn) Write(b []byte) (int, error) {
	c.writes = append(c.writes, bytes.Clone(b))
	return len(b), nil
}

func TestSmallTailsTravelInOneWriteAndLargeOnesUncopied(t *testing.T) {
	t.Parallel()
	small, large := []byte("a section"), make([]byte, copiedTail+1)
	for _, tc := range []struct {
		name string
		tail [][]byte
		want int // writes
		kept int // bytes of tails that stand in Out afterwards
	}{
		{"none", nil, 1, 0},
		{"small", [][]byte{small, small}, 1, 2 * len(small)},
		{"large", [][]byte{small, large}, 3, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			nc := &listConn{}
			c := &Conn{nc: nc}
			c.Begin()
			head := len(c.Out)
			size := len(bytes.Join(tc.tail, nil))
			wire.SetLength(c.Out, size)
			require.NoError(t, c.send(tc.tail, size))
			require.Len(t, nc.writes, tc.want)
			require.Len(t, c.Out, head+tc.kept)
			sent := bytes.Join(nc.writes, nil)
			require.Equal(t, bytes.Join(tc.tail, nil), sent[head:])
		})
	}
}
