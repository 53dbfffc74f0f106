package fleet

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.yaml.in/yaml/v3"

	"drover/internal/failure"
)

// walker reads nodes of a file and collects all that is wrong, with line and field.
type walker struct{ problems []string }

// bad is the refusal of a file.
func bad(problems []string) error {
	return failure.New(failure.Invalid, "fleet.bad_file", "the file is refused as a whole:\n  %s", strings.Join(problems, "\n  ")).
		WithHint("docs/fleet.md describes the file; nothing was changed")
}

// fail notes a problem.
func (w *walker) fail(line int, path, format string, args ...any) {
	w.problems = append(w.problems, fmt.Sprintf("line %d: %s %s", line, strings.TrimPrefix(path, "."), fmt.Sprintf(format, args...)))
}

// need notes a text that must not be empty.
func (w *walker) need(n *yaml.Node, path, field, value string) {
	if value == "" {
		w.fail(n.Line, path+"."+field, "is missing")
	}
}

// resolve follows an alias.
func resolve(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

// fields reads a mapping; what is not known or is there twice is wrong.
func (w *walker) fields(n *yaml.Node, path string, known map[string]func(*yaml.Node, string)) {
	n = resolve(n)
	if n.Kind != yaml.MappingNode {
		w.fail(n.Line, path, "want fields of %s", strings.Join(slices.Sorted(maps.Keys(known)), ", "))
		return
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		name, at := n.Content[i].Value, path+"."+n.Content[i].Value
		read, ok := known[name]
		switch {
		case !ok:
			w.fail(n.Content[i].Line, at, "is unknown; want one of %s", strings.Join(slices.Sorted(maps.Keys(known)), ", "))
		case seen[name]:
			w.fail(n.Content[i].Line, at, "is there twice")
		default:
			read(resolve(n.Content[i+1]), at)
		}
		seen[name] = true
	}
}

// list reads a sequence.
func (w *walker) list(n *yaml.Node, path string, each func(*yaml.Node, string)) {
	if n.Kind == yaml.ScalarNode && n.Tag == "!!null" {
		return
	}
	if n.Kind != yaml.SequenceNode {
		w.fail(n.Line, path, "want a list")
		return
	}
	for i, x := range n.Content {
		each(resolve(x), fmt.Sprintf("%s[%d]", path, i))
	}
}

// text reads a string.
func (w *walker) text(into *string) func(*yaml.Node, string) {
	return func(n *yaml.Node, path string) {
		if n.Kind != yaml.ScalarNode || n.Tag != "!!str" || n.Value == "" {
			w.fail(n.Line, path, "want a text that is not empty")
			return
		}
		*into = n.Value
	}
}

// integer reads a whole number.
func (w *walker) integer(into *int) func(*yaml.Node, string) {
	return func(n *yaml.Node, path string) {
		if n.Tag != "!!int" || n.Decode(into) != nil {
			w.fail(n.Line, path, "want a whole number")
		}
	}
}

// truth reads true or false.
func (w *walker) truth(into *bool) func(*yaml.Node, string) {
	return func(n *yaml.Node, path string) {
		if n.Tag != "!!bool" || n.Decode(into) != nil {
			w.fail(n.Line, path, "want true or false")
		}
	}
}

// policyFields are the fields of a quota with their names in the metadata.
var policyFields = map[string]string{
	"opsPerSecond": "ops_per_second", "opsBurst": "ops_burst", "bytesPerSecond": "bytes_per_second", "bytesBurst": "bytes_burst",
	"priority": "priority", "scatter": "scatter", "needIndex": "need_index", "defaultMaxTimeMS": "default_max_time_ms",
}

// policy reads a quota as the metadata keeps it; what its values may be is checked
// by who knows them.
func (w *walker) policy(n *yaml.Node, path string) json.RawMessage {
	out := map[string]json.RawMessage{}
	read := map[string]func(*yaml.Node, string){}
	for field, name := range policyFields {
		read[field] = func(n *yaml.Node, path string) {
			if n.Kind != yaml.ScalarNode {
				w.fail(n.Line, path, "want one value")
				return
			}
			out[name] = json.RawMessage(extended(n))
		}
	}
	w.fields(n, path, read)
	b, err := json.Marshal(out)
	if err != nil {
		w.fail(n.Line, path, "%v", err)
	}
	return b
}

// value reads any value: plain YAML, or extended JSON written as YAML.
func (w *walker) value(n *yaml.Node, path string) bson.RawValue {
	var d struct {
		V bson.RawValue `bson:"v"`
	}
	if err := bson.UnmarshalExtJSON([]byte(`{"v":`+extended(n)+`}`), false, &d); err != nil {
		w.fail(n.Line, path, "is no value: %v", err)
		return bson.RawValue{Type: bson.TypeNull}
	}
	return d.V
}

// extended writes a node as JSON, fields in their order.
func extended(n *yaml.Node) string {
	n = resolve(n)
	quote := func(s string) string {
		b, err := json.Marshal(s)
		if err != nil {
			return `""`
		}
		return string(b)
	}
	switch n.Kind {
	case yaml.MappingNode:
		parts := make([]string, 0, len(n.Content)/2)
		for i := 0; i+1 < len(n.Content); i += 2 {
			parts = append(parts, quote(n.Content[i].Value)+":"+extended(n.Content[i+1]))
		}
		return "{" + strings.Join(parts, ",") + "}"
	case yaml.SequenceNode:
		parts := make([]string, 0, len(n.Content))
		for _, x := range n.Content {
			parts = append(parts, extended(x))
		}
		return "[" + strings.Join(parts, ",") + "]"
	default:
		var i int64
		var x float64
		var b bool
		switch {
		case n.Tag == "!!null":
			return "null"
		case n.Tag == "!!int" && n.Decode(&i) == nil:
			return strconv.FormatInt(i, 10)
		case n.Tag == "!!float" && n.Decode(&x) == nil && x == x && x-x == 0:
			return strconv.FormatFloat(x, 'f', -1, 64)
		case n.Tag == "!!bool" && n.Decode(&b) == nil:
			return strconv.FormatBool(b)
		}
		return quote(n.Value)
	}
}
