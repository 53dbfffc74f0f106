package proxy

import (
	"context"
	"time"
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
}
