package proxy

import (
	"context"
	"errors"
	"fmt"
	"time"

	"drover/proxy/admission"
)

// controlPause is the time between two looks at users and policies. They are
// few and change seldom.
const controlPause = 5 * time.Second

// followControl keeps users and policies as the metadata has them.
func (p *Proxy) followControl(ctx context.Context) {
	ticker := time.NewTicker(controlPause)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			p.readControl(ctx)
		case <-ctx.Done():
			return
		}
	}
}

// readControl reads users and policies. What cannot be read stays as it was.
func (p *Proxy) readControl(ctx context.Context) {
	ctx, cancel := context.WithTimeoutCause(ctx, p.cfg.MetadataTimeout, errMetadataTimeout)
	defer cancel()
	if p.book != nil {
		if err := p.book.Refresh(ctx, p.ports.Users, 0); err != nil && ctx.Err() == nil {
			p.log.WarnContext(ctx, "users were not read", "error", err)
		}
	}
	if p.ports.Policies != nil {
		if err := p.readPolicies(ctx); err != nil && ctx.Err() == nil {
			p.log.WarnContext(ctx, "policies were not read", "error", err)
		}
	}
}

// readPolicies reads the policies. One that this proxy does not understand
// leaves what was in force for its database.
func (p *Proxy) readPolicies(ctx context.Context) error {
	all, err := p.ports.Policies.Policies(ctx)
	if err != nil {
		return fmt.Errorf("read policies: %w", err)
	}
	old := p.tenants.Policies()
	fresh := make(map[string]admission.Policy, len(all))
	var problems []error
	for name, text := range all {
		policy, err := admission.ParsePolicy(text)
		if err != nil {
			problems = append(problems, fmt.Errorf("database %s: %w", name, err))
			kept, known := old[name]
			if !known {
				continue
			}
			policy = kept
		}
		fresh[name] = policy
	}
	p.tenants.Set(fresh)
	return errors.Join(problems...)
}
