package metadata

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"drover/chunk"
)

// The channels of NOTIFY.
const (
	attemptsChannel = "drover_attempts"
	routesChannel   = "drover_routes"
	acksChannel     = "drover_acks"
)

// RouteNotice announces a route with its placement; one without a chunk, a whole
// database.
type RouteNotice struct {
	Database  string            `json:"database"`
	Chunk     chunk.ID          `json:"chunk"`
	Token     chunk.Token       `json:"token"`
	Placement chunk.PlacementID `json:"placement"`
	Shard     string            `json:"shard"`
	Physical  string            `json:"physical"` // the placement's database
}

// Handler is told what changes. Its methods are called one at a time, and should
// return soon: what is announced meanwhile waits.
type Handler interface {
	// Resync is called after every connect, when listening has begun: it reads
	// whatever may have been missed. An error makes the listener connect again.
	Resync(ctx context.Context) error
	// AttemptChanged is one change of an attempt's state.
	AttemptChanged(ctx context.Context, n chunk.Notice)
	// RouteChanged is one new route.
	RouteChanged(ctx context.Context, n RouteNotice)
	// Disconnected says why nothing is heard until the next Resync.
	Disconnected(err error)
}

// How a listener keeps its connection.
const (
	listenProbe      = time.Second     // a connection silent for so long is asked for an answer
	listenAnswer     = 2 * time.Second // that it must give within this time
	listenBackoffMin = 20 * time.Millisecond
	listenBackoffMax = 2 * time.Second
)

// Listen tells h of every change until ctx ends, on a connection of its own. A
// lost connection is made again, and Resync called each time, so that nothing is
// missed. It returns the cause of ctx's end.
func (s *Store) Listen(ctx context.Context, h Handler) error {
	backoff := listenBackoffMin
	for {
		began := time.Now()
		err := s.listenOnce(ctx, h)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if time.Since(began) > listenBackoffMax {
			backoff = listenBackoffMin
		}
		h.Disconnected(err)
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(backoff/2 + rand.N(backoff/2)): //nolint:gosec // jitter
		}
		backoff = min(2*backoff, listenBackoffMax)
	}
}

// listenOnce listens on one connection until it fails.
func (s *Store) listenOnce(ctx context.Context, h Handler) error {
	conn, err := s.listenOn(ctx, attemptsChannel, routesChannel)
	if err != nil {
		return err
	}
	defer closeConn(ctx, conn)
	if err := h.Resync(ctx); err != nil {
		return fmt.Errorf("resync: %w", err)
	}
	for {
		n, err := nextNotification(ctx, conn)
		if err != nil {
			return err
		}
		switch n.Channel {
		case attemptsChannel:
			var notice chunk.Notice
			if err := json.Unmarshal([]byte(n.Payload), &notice); err != nil {
				return fmt.Errorf("read notice of attempt: %w", err)
			}
			h.AttemptChanged(ctx, notice)
		case routesChannel:
			var notice RouteNotice
			if err := json.Unmarshal([]byte(n.Payload), &notice); err != nil {
				return fmt.Errorf("read notice of route: %w", err)
			}
			h.RouteChanged(ctx, notice)
		}
	}
}

// listenOn opens a connection of its own that listens on channels.
func (s *Store) listenOn(ctx context.Context, channels ...string) (*pgx.Conn, error) {
	conn, err := pgx.ConnectConfig(ctx, s.pool.Config().ConnConfig)
	if err != nil {
		return nil, fmt.Errorf("connect to listen: %w", err)
	}
	for _, c := range channels {
		if _, err := conn.Exec(ctx, `listen `+c); err != nil {
			closeConn(ctx, conn)
			return nil, fmt.Errorf("listen on %s: %w", c, err)
		}
	}
	return conn, nil
}

// nextNotification waits for one notification, and asks a connection that is
// silent for an answer: a peer that vanished says nothing either.
func nextNotification(ctx context.Context, conn *pgx.Conn) (*pgconn.Notification, error) {
	for {
		n, err := waitNotification(ctx, conn)
		if err == nil {
			return n, nil
		}
		if ctx.Err() != nil || conn.IsClosed() || !pgconn.Timeout(err) {
			return nil, fmt.Errorf("wait for notification: %w", err)
		}
		if err := probe(ctx, conn); err != nil {
			return nil, err
		}
	}
}

// waitNotification waits for at most listenProbe.
func waitNotification(ctx context.Context, conn *pgx.Conn) (*pgconn.Notification, error) {
	ctx, cancel := context.WithTimeout(ctx, listenProbe)
	defer cancel()
	return conn.WaitForNotification(ctx)
}

// probe asks the server for an answer.
func probe(ctx context.Context, conn *pgx.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, listenAnswer)
	defer cancel()
	if err := conn.Ping(ctx); err != nil {
		return fmt.Errorf("probe listening connection: %w", err)
	}
	return nil
}

// closeConn closes a connection even when its context is over.
func closeConn(ctx context.Context, conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_ = conn.Close(ctx)
}
