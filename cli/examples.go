package cli

import "github.com/spf13/cobra"

// examples shows how each command is called, where it does not say so itself. A
// test parses every line.
var examples = map[string]string{ //nolint:gochecknoglobals // a constant table
	"binpack":             "drover binpack --yes",
	"rebalance plan":      "drover rebalance plan",
	"rebalance start":     "drover rebalance start --yes",
	"rebalance status":    "drover rebalance status 3",
	"rebalance stop":      "drover rebalance stop 3",
	"shard drain":         "drover shard drain shard-a --yes",
	"apply":               "drover apply -f fleet.yaml --yes",
	"diff":                "drover diff -f fleet.yaml",
	"fleet history":       "drover fleet history",
	"balancer start":      "drover balancer start",
	"balancer status":     "drover balancer status",
	"balancer stop":       "drover balancer stop",
	"chunk list":          "drover chunk list flights",
	"context add":         "drover context add east -f east.yaml",
	"context list":        "drover context list",
	"context use":         "drover context use east",
	"config show":         "drover config show --role proxy",
	"db clients":          "drover db clients",
	"db list":             "drover db list --output json",
	"db policy":           "drover db policy flights",
	"demo":                "drover demo --rows 30000 --report demo-report.json",
	"dev down":            "drover dev down",
	"dev reset":           "drover dev reset",
	"dev status":          "drover dev status",
	"dev up":              "drover dev up --kafka embedded",
	"lease break":         "drover lease break shard-a --execute",
	"lease list":          "drover lease list shard-a",
	"lease release":       "drover lease release shard-a",
	"lease take":          "drover lease take shard-a --for 2h --reason 'new disks'",
	"log follow":          "drover log follow flights/0003",
	"log show":            "drover log show flights/0003 --from 2h --id 42",
	"migrate abort":       "drover migrate abort flights/0003 --reason 'wrong shard'",
	"migrate approve":     "drover migrate approve flights/0003",
	"migrate batch":       "drover migrate batch moves.json",
	"migrate complete":    "drover migrate complete flights/0003",
	"migrate drill":       "drover migrate drill flights/0003",
	"migrate gate":        "drover migrate gate flights/0003",
	"migrate list":        "drover migrate list --unfinished",
	"migrate mismatches":  "drover migrate mismatches flights/0003",
	"migrate pause":       "drover migrate pause flights/0003 --reason maintenance",
	"migrate resume":      "drover migrate resume flights/0003",
	"migrate rollback":    "drover migrate rollback flights/0003",
	"migrate status":      "drover migrate status flights/0003",
	"migrate switch":      "drover migrate switch flights/0003 --dry-run",
	"migrate timeline":    "drover migrate timeline flights/0003",
	"migrate watch":       "drover migrate watch flights/0003",
	"proxy":               "drover proxy --listen 0.0.0.0:27017 --metrics-listen 127.0.0.1:9102",
	"remediation resume":  "drover remediation resume",
	"remediation status":  "drover remediation status",
	"remediation stop":    "drover remediation stop --reason 'network change'",
	"remediation unwatch": "drover remediation unwatch",
	"remediation watch":   "drover remediation watch --execute",
	"shard add":           "drover shard add shard-a --uri 'mongodb://root:PASSWORD@a1,a2,a3/?replicaSet=a'",
	"shard check":         "drover shard check shard-a",
	"shard layout set":    "drover shard layout set shard-a -f shard-a.yaml",
	"shard layout show":   "drover shard layout show shard-a",
	"shard list":          "drover shard list",
	"sim balance":         "drover sim balance",
	"user grant":          "drover user grant shop shop:read,write",
	"user list":           "drover user list",
	"user passwd":         "drover user passwd shop < shop.password",
	"user remove":         "drover user remove shop",
	"user revoke":         "drover user revoke shop shop:write",
	"validate":            "drover validate flights/0003 --audit",
	"version":             "drover version --output json",
	"worker":              "drover worker --metrics-listen 127.0.0.1:9101",
}

// addExamples gives every command below c its example.
func addExamples(c *cobra.Command) {
	for _, sub := range c.Commands() {
		addExamples(sub)
		if text := examples[pathOf(sub)]; text != "" && sub.Example == "" {
			sub.Example = "  " + text
		}
	}
}

// pathOf is a command's path without the program.
func pathOf(c *cobra.Command) string {
	if !c.HasParent() {
		return ""
	}
	if p := pathOf(c.Parent()); p != "" {
		return p + " " + c.Name()
	}
	return c.Name()
}
