package config

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"
)

// Value is one value of a file with sections.
type Value struct {
	Name string
	Text string
	Line int
}

// Sections reads a file whose top level names sections of values. It says all that is
// wrong with its form, each with line and field.
func Sections(content []byte, known ...string) (map[string][]Value, []error) {
	var doc yaml.Node
	if err := yaml.Unmarshal(content, &doc); err != nil {
		return nil, []error{fmt.Errorf("%s", strings.TrimPrefix(err.Error(), "yaml: "))}
	}
	out := map[string][]Value{}
	if len(doc.Content) == 0 {
		return out, nil
	}
	var problems []error
	pairs := func(n *yaml.Node, path string, each func(key, value *yaml.Node)) {
		if n.Kind == yaml.ScalarNode && n.Tag == "!!null" {
			return
		}
		if n.Kind != yaml.MappingNode {
			problems = append(problems, fmt.Errorf("line %d: %s wants fields with values", n.Line, path))
			return
		}
		seen := map[string]bool{}
		for i := 0; i+1 < len(n.Content); i += 2 {
			if key := n.Content[i]; seen[key.Value] {
				problems = append(problems, fmt.Errorf("line %d: %s.%s is there twice", key.Line, path, key.Value))
			} else {
				seen[key.Value] = true
				each(key, n.Content[i+1])
			}
		}
	}
	pairs(doc.Content[0], "file", func(section, fields *yaml.Node) {
		if !slices.Contains(known, section.Value) {
			problems = append(problems, fmt.Errorf("line %d: section %q is unknown; want one of %s", section.Line, section.Value, strings.Join(known, ", ")))
			return
		}
		out[section.Value] = []Value{}
		pairs(fields, section.Value, func(key, value *yaml.Node) {
			if value.Kind != yaml.ScalarNode {
				problems = append(problems, fmt.Errorf("line %d: %s.%s wants one value", value.Line, section.Value, key.Value))
				return
			}
			out[section.Value] = append(out[section.Value], Value{Name: key.Value, Text: value.Value, Line: key.Line})
		})
	})
	return out, problems
}

// SetAll sets flags to the values of a section, and says all that is wrong with them.
func SetAll(fs *pflag.FlagSet, section string, values []Value) (problems []error) {
	for _, v := range values {
		if fs.Lookup(v.Name) == nil {
			var names []string
			fs.VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
			problems = append(problems, fmt.Errorf("line %d: %s.%s is unknown; want one of %s", v.Line, section, v.Name, strings.Join(names, ", ")))
		} else if err := fs.Set(v.Name, v.Text); err != nil {
			problems = append(problems, fmt.Errorf("line %d: %s.%s: %w", v.Line, section, v.Name, err))
		}
	}
	return problems
}

// ParseLive reads the settings that may change while proxies run, and says all that is
// wrong with them.
func ParseLive(section string, values []Value) (map[string]string, []error) {
	var c Config
	all := pflag.NewFlagSet(section, pflag.ContinueOnError)
	c.Flags(all, Proxy)
	fs := pflag.NewFlagSet(section, pflag.ContinueOnError)
	all.VisitAll(func(f *pflag.Flag) {
		if Live(f.Name) {
			fs.AddFlag(f)
		}
	})
	problems := SetAll(fs, section, values)
	for _, err := range c.validateLive() {
		problems = append(problems, fmt.Errorf("%s: %w", section, err))
	}
	out := map[string]string{}
	for _, v := range values {
		out[v.Name] = v.Text
	}
	return out, problems
}

// validateLive returns the problems of what may change while a proxy runs.
func (c *Config) validateLive() (problems []error) {
	if c.SwitchWait <= 0 {
		problems = append(problems, fmt.Errorf("switch-wait is %s; want a positive duration", c.SwitchWait))
	}
	if c.Linger < 0 {
		problems = append(problems, fmt.Errorf("linger is %s; want 0 or longer", c.Linger))
	}
	var level slog.Level
	if err := level.UnmarshalText([]byte(c.LogLevel)); err != nil {
		problems = append(problems, fmt.Errorf("log-level is %q; want debug, info, warn or error", c.LogLevel))
	}
	return problems
}
