package activities

import (
	"context"
	"fmt"
	"strings"

	"drover/chunk"
	"drover/contract"
	"drover/gate"
	"drover/internal/failure"
)

// beside lists who may write to an adopted placement's database without a proxy: no
// fence holds them.
func (a *Activities) beside(ctx context.Context, p chunk.Placement) ([]string, error) {
	if p.OwnName() == "" {
		return nil, nil
	}
	set, err := a.Sides.Set(ctx, p.Shard)
	if err != nil {
		return nil, err
	}
	all, err := set.CheckPrincipals(ctx, p.Database)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, x := range all {
		out = append(out, fmt.Sprintf("%s may write to %s/%s: %s", x.User, p.Shard, p.Database, x.Why))
	}
	return out, nil
}

// checkBeside refuses to move an adopted placement that others may write to.
func (a *Activities) checkBeside(ctx context.Context, p chunk.Placement) error {
	others, err := a.beside(ctx, p)
	if err != nil || len(others) == 0 {
		return err
	}
	return failure.New(failure.Invalid, "adoption.writers", "chunk %s lives in a database that was adopted, and who does not come through a proxy may still write to it: %s",
		p.Chunk, strings.Join(others, "; ")).
		WithHint("a write beside the proxies is not fenced and would be lost: finish docs/adoption.md first; drover db adopt %s --check shows where it stands", databaseOf(p.Chunk))
}

// gateBeside is the same question before a switch, where there is one to ask.
func (a *Activities) gateBeside(ctx context.Context, in contract.DirectionInput) []contract.Check {
	if in.From.OwnName() == "" {
		return nil
	}
	others, err := a.beside(ctx, in.From)
	return []contract.Check{gate.Beside(others, err)}
}
