package metadata

import (
	"context"
	"encoding/json"
	"time"

	"github.com/jackc/pgx/v5"

	"drover/internal/failure"
)

// ProxyUser is one who may log in at the proxies, with what SCRAM-SHA-256 keeps
// of the password.
type ProxyUser struct {
	Name                 string
	Salt                 []byte
	Iterations           int
	StoredKey, ServerKey []byte
	Grants               map[string][]string // database, or "*", to actions
}

// PutProxyUser makes a user. One that is there gets the credentials and keeps its
// grants only when replace is set.
//
// Refusals: "user.exists", "user.unknown".
func (s *Store) PutProxyUser(ctx context.Context, u ProxyUser, replace bool) error {
	q := `insert into proxy_users (name, salt, iterations, stored_key, server_key) values ($1, $2, $3, $4, $5) on conflict do nothing`
	if replace {
		q = `update proxy_users set salt = $2, iterations = $3, stored_key = $4, server_key = $5, changed_at = clock_timestamp() where name = $1`
	}
	tag, err := s.pool.Exec(ctx, q, u.Name, u.Salt, u.Iterations, u.StoredKey, u.ServerKey)
	switch {
	case err != nil:
		return decode(err, "write user %s", u.Name)
	case tag.RowsAffected() == 1:
		return nil
	case replace:
		return unknownUser(u.Name)
	default:
		return failure.New(failure.Invalid, "user.exists", "there is a user %s", u.Name).WithHint("`drover user passwd` changes a password")
	}
}

// unknownUser says that there is no such user.
func unknownUser(name string) error {
	return failure.New(failure.Invalid, "user.unknown", "there is no user %s", name).WithHint("`drover user list` shows them")
}

// RemoveProxyUser forgets a user with its grants.
//
// Refusals: "user.unknown".
func (s *Store) RemoveProxyUser(ctx context.Context, name string) error {
	tag, err := s.pool.Exec(ctx, `delete from proxy_users where name = $1`, name)
	if err == nil && tag.RowsAffected() == 0 {
		return unknownUser(name)
	}
	return decode(err, "remove user %s", name)
}

// GrantProxyUser gives a user actions on a database; those it has stay.
//
// Refusals: "user.unknown".
func (s *Store) GrantProxyUser(ctx context.Context, name, database string, actions []string) error {
	const q = `with u as (select name from proxy_users where name = $1),
		g as (insert into proxy_grants (user_name, database, action)
			select u.name, $2, a from u, unnest($3::text[]) a on conflict do nothing)
		select exists (select from u)`
	return s.changeGrants(ctx, q, name, database, actions)
}

// RevokeProxyUser takes actions on a database from a user; those it does not
// have are no error.
//
// Refusals: "user.unknown".
func (s *Store) RevokeProxyUser(ctx context.Context, name, database string, actions []string) error {
	const q = `with d as (delete from proxy_grants where user_name = $1 and database = $2 and action = any($3::text[]))
		select exists (select from proxy_users where name = $1)`
	return s.changeGrants(ctx, q, name, database, actions)
}

// changeGrants runs a statement that says whether the user is there.
func (s *Store) changeGrants(ctx context.Context, q, name, database string, actions []string) error {
	var known bool
	if err := s.pool.QueryRow(ctx, q, name, database, actions).Scan(&known); err != nil {
		return decode(err, "change grants of user %s", name)
	}
	if !known {
		return unknownUser(name)
	}
	return nil
}

// ProxyUsers gives every user with its grants, by name.
func (s *Store) ProxyUsers(ctx context.Context) ([]ProxyUser, error) {
	const q = `select u.name, u.salt, u.iterations, u.stored_key, u.server_key,
			coalesce((select jsonb_object_agg(d.database, d.actions) from (
				select g.database, jsonb_agg(g.action order by g.action) as actions from proxy_grants g
				where g.user_name = u.name group by g.database) d), '{}')
		from proxy_users u order by u.name`
	rows, err := s.pool.Query(ctx, q)
	if err != nil {
		return nil, decode(err, "list users")
	}
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (u ProxyUser, err error) {
		var grants []byte
		if err := row.Scan(&u.Name, &u.Salt, &u.Iterations, &u.StoredKey, &u.ServerKey, &grants); err != nil {
			return u, err
		}
		return u, json.Unmarshal(grants, &u.Grants)
	})
	return all, decode(err, "list users")
}

// SetPolicy replaces a database's policy; the text is JSON that the proxies know.
//
// Refusals: "database.unknown".
func (s *Store) SetPolicy(ctx context.Context, database string, policy []byte) error {
	const q = `insert into database_policies (database, policy) select name, $2::jsonb from databases where name = $1
		on conflict (database) do update set policy = excluded.policy, changed_at = clock_timestamp()`
	tag, err := s.pool.Exec(ctx, q, database, string(policy))
	if err == nil && tag.RowsAffected() == 0 {
		return failure.New(failure.Invalid, "database.unknown", "there is no database %s", database).WithHint("`drover db list` shows them")
	}
	return decode(err, "write policy of %s", database)
}

// Policies gives every database's policy.
func (s *Store) Policies(ctx context.Context) (map[string][]byte, error) {
	rows, err := s.pool.Query(ctx, `select database, policy::text from database_policies`)
	if err != nil {
		return nil, decode(err, "read policies")
	}
	out := map[string][]byte{}
	var name, policy string
	_, err = pgx.ForEachRow(rows, []any{&name, &policy}, func() error {
		out[name] = []byte(policy)
		return nil
	})
	return out, decode(err, "read policies")
}

// ProxyClient is what one proxy knows about one user's application.
type ProxyClient struct {
	Proxy, User, App string
	Envelope         []byte // JSON that the proxies write
	SeenAt           time.Time
}

// clientLife is how long what a proxy has learned about a caller is kept.
const clientLife = 30 * 24 * time.Hour

// PutProxyClients records what a proxy has learned.
func (s *Store) PutProxyClients(ctx context.Context, proxy string, all []ProxyClient) error {
	batch := &pgx.Batch{}
	for _, c := range all {
		batch.Queue(`insert into proxy_clients (proxy, user_name, app, envelope) values ($1, $2, $3, $4::jsonb)
			on conflict (proxy, user_name, app) do update set envelope = excluded.envelope, seen_at = clock_timestamp()`,
			proxy, plainText(c.User), plainText(c.App), string(c.Envelope))
	}
	batch.Queue(`delete from proxy_clients where seen_at < clock_timestamp() - $1::interval`, clientLife)
	return decode(s.pool.SendBatch(ctx, batch).Close(), "record clients of %s", proxy)
}

// ProxyClients gives what every proxy has learned, by user and application.
func (s *Store) ProxyClients(ctx context.Context) ([]ProxyClient, error) {
	rows, err := s.pool.Query(ctx, `select proxy, user_name, app, envelope::text, seen_at from proxy_clients order by user_name, app, proxy`)
	if err != nil {
		return nil, decode(err, "list clients")
	}
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (c ProxyClient, err error) {
		var envelope string
		err = row.Scan(&c.Proxy, &c.User, &c.App, &envelope, &c.SeenAt)
		c.Envelope = []byte(envelope)
		return c, err
	})
	return all, decode(err, "list clients")
}
