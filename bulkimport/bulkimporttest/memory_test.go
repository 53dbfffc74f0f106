package bulkimporttest_test

import (
	"testing"

	"drover/bulkimport"
	"drover/bulkimport/bulkimporttest"
)

func TestMemory(t *testing.T) {
	t.Parallel()
	bulkimporttest.Run(t, 7, func(*testing.T) bulkimport.Slices { return &bulkimporttest.Memory{} })
}
