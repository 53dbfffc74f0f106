package cdc_test

import (
	"fmt"
	"testing"
	"time"

	"drover/cdc"
	"drover/event"
)

func TestZZ(t *testing.T) {
	b := setup(t, nil)
	start(t, b.capture(nil))
	b.begun(t)
	time.Sleep(3 * time.Second)
	ends, err := b.log.EndOffsets(t.Context(), b.name)
	fmt.Println(ends, err)
	for i := range 5 {
		t0 := time.Now()
		n := 0
		err := b.log.Read(t.Context(), b.name, int32(i%4), 0, func(off int64, e *event.Event) error {
			if e == nil {
				fmt.Println("  nil", off, time.Since(t0))
			}
			n++
			if off >= ends[0]-1 {
				return cdc.ErrStop
			}
			return nil
		})
		fmt.Println(i, n, err, time.Since(t0))
	}
	p, _ := b.positions.of(t, b.name)
	fmt.Println(p.Seq, p.Round)
}
