package workers

import (
	"encoding"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"drover/activities"
	"drover/contract"
)

// wireFile is what workers of different versions have said to each other so far.
const wireFile = "testdata/wire.txt"

// wire notes what is registered: one line for each field that goes over the wire.
type wire struct {
	worker.WorkflowRegistry
	queue string
	lines []string
}

// RegisterActivityWithOptions implements [contract.Registry].
func (w *wire) RegisterActivityWithOptions(fn any, o activity.RegisterOptions) {
	w.note(w.queue+" "+o.Name, reflect.TypeOf(fn))
}

// RegisterWorkflowWithOptions implements [worker.WorkflowRegistry].
func (w *wire) RegisterWorkflowWithOptions(fn any, o workflow.RegisterOptions) {
	w.note("workflow "+o.Name, reflect.TypeOf(fn))
}

// note writes down both sides of a function, without its context and its error.
func (w *wire) note(name string, fn reflect.Type) {
	w.lines = append(w.lines, name)
	for i := 1; i < fn.NumIn(); i++ {
		w.fields(name+" in", fn.In(i), nil)
	}
	for i := range fn.NumOut() - 1 {
		w.fields(name+" out", fn.Out(i), nil)
	}
}

// fields writes down what a type is in JSON, down to what has no fields.
func (w *wire) fields(at string, t reflect.Type, above []reflect.Type) {
	leaf := t.Implements(reflect.TypeFor[json.Marshaler]()) || t.Implements(reflect.TypeFor[encoding.TextMarshaler]())
	switch {
	case leaf, slices.Contains(above, t):
		w.lines = append(w.lines, at+" "+t.String())
		return
	}
	above = append(slices.Clone(above), t)
	switch t.Kind() { //nolint:exhaustive // the others are leaves
	case reflect.Pointer:
		w.fields(at, t.Elem(), above)
	case reflect.Slice, reflect.Array:
		if t.Elem().Kind() == reflect.Uint8 {
			w.lines = append(w.lines, at+" bytes")
			return
		}
		w.fields(at+"[]", t.Elem(), above)
	case reflect.Map:
		w.fields(at+"{}", t.Elem(), above)
	case reflect.Struct:
		w.members(at, t, above)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64, reflect.Uint, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		w.lines = append(w.lines, at+" integer")
	case reflect.Float64, reflect.Float32:
		w.lines = append(w.lines, at+" number")
	default:
		w.lines = append(w.lines, at+" "+t.Kind().String())
	}
}

// members writes down the fields of a struct.
func (w *wire) members(at string, t reflect.Type, above []reflect.Type) {
	for f := range t.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case name == "-" || !f.IsExported() && !f.Anonymous:
		case f.Anonymous && name == "":
			w.fields(at, f.Type, above)
		case name == "":
			w.fields(at+"."+f.Name, f.Type, above)
		default:
			w.fields(at+"."+name, f.Type, above)
		}
	}
}

// While versions are mixed a worker reads what another one wrote. So nothing that has
// once gone over the wire may vanish, change its name, its type or its queue: with
// -update only what is new is added, and what has gone stays an error. Lines are taken
// out by hand, a release after the last one that says them.
func TestTheWireOnlyGains(t *testing.T) {
	w := &wire{}
	for _, w.queue = range []string{contract.ControlQueue, contract.BulkQueue, contract.FenceQueue} {
		(&activities.Activities{}).Register(w, w.queue)
		(&activities.Remedier{}).Register(w, w.queue)
		(&activities.Balancer{}).Register(w, w.queue)
	}
	RegisterWorkflows(w)
	require.Greater(t, len(w.lines), 300)

	b, err := os.ReadFile(wireFile)
	if !*update || !os.IsNotExist(err) {
		require.NoError(t, err)
	}
	before := strings.Split(strings.TrimSpace(string(b)), "\n")
	if *update {
		all := append(slices.Clone(before), w.lines...)
		slices.Sort(all)
		text := strings.TrimSpace(strings.Join(slices.Compact(all), "\n")) + "\n"
		require.NoError(t, os.MkdirAll(filepath.Dir(wireFile), 0o750))
		require.NoError(t, os.WriteFile(wireFile, []byte(text), 0o600))
		before = strings.Split(strings.TrimSpace(text), "\n")
	}
	only := func(these, others []string) []string {
		return slices.DeleteFunc(slices.Clone(these), func(line string) bool { return slices.Contains(others, line) })
	}
	require.Empty(t, only(before, w.lines), "workers of another version say this: it must go on to mean the same")
	require.Empty(t, only(w.lines, before), "go test ./workers -run TestTheWireOnlyGains -update adds what is new")
}
