package metadatatest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"drover/internal/failure"
	"drover/metadata"
)

// controlCases is who may use the proxies, and how much.
var controlCases = map[string]func(*testing.T, *fleet){
	"UsersKeepTheirGrants": func(t *testing.T, f *fleet) {
		u := metadata.ProxyUser{Name: "shop", Salt: []byte{0, 1}, Iterations: 7, StoredKey: []byte{2}, ServerKey: []byte{3}}
		require.NoError(t, f.PutProxyUser(t.Context(), u, false))
		requireFailure(t, f.PutProxyUser(t.Context(), u, false), failure.Invalid, "user.exists")
		require.NoError(t, f.GrantProxyUser(t.Context(), "shop", "flights", []string{"read", "write"}))
		require.NoError(t, f.GrantProxyUser(t.Context(), "shop", "*", []string{"read"}))
		require.NoError(t, f.GrantProxyUser(t.Context(), "shop", "*", []string{"read"}))
		require.NoError(t, f.RevokeProxyUser(t.Context(), "shop", "flights", []string{"write", "ddl"}))
		u.StoredKey = []byte{9}
		require.NoError(t, f.PutProxyUser(t.Context(), u, true))
		all, err := f.ProxyUsers(t.Context())
		require.NoError(t, err)
		u.Grants = map[string][]string{"flights": {"read"}, "*": {"read"}}
		require.Equal(t, []metadata.ProxyUser{u}, all)

		require.NoError(t, f.RemoveProxyUser(t.Context(), "shop"))
		requireFailure(t, f.RemoveProxyUser(t.Context(), "shop"), failure.Invalid, "user.unknown")
		requireFailure(t, f.PutProxyUser(t.Context(), u, true), failure.Invalid, "user.unknown")
		requireFailure(t, f.GrantProxyUser(t.Context(), "shop", "*", []string{"read"}), failure.Invalid, "user.unknown")
		requireFailure(t, f.RevokeProxyUser(t.Context(), "shop", "*", []string{"read"}), failure.Invalid, "user.unknown")
	},

	"PoliciesAreReplaced": func(t *testing.T, f *fleet) {
		requireFailure(t, f.SetPolicy(t.Context(), "nowhere", []byte(`{}`)), failure.Invalid, "database.unknown")
		require.NoError(t, f.SetPolicy(t.Context(), "flights", []byte(`{"a": 1}`)))
		require.NoError(t, f.SetPolicy(t.Context(), "flights", []byte(`{"b": 2}`)))
		all, err := f.Policies(t.Context())
		require.NoError(t, err)
		require.Len(t, all, 1)
		require.JSONEq(t, `{"b": 2}`, string(all["flights"]))
	},

	"ClientsAreRemembered": func(t *testing.T, f *fleet) {
		c := metadata.ProxyClient{User: "shop", App: "a\x00b", Envelope: []byte(`{"writes": 1}`)}
		require.NoError(t, f.PutProxyClients(t.Context(), "p1", []metadata.ProxyClient{c}))
		c.Envelope = []byte(`{"writes": 2}`)
		require.NoError(t, f.PutProxyClients(t.Context(), "p1", []metadata.ProxyClient{c}))
		all, err := f.ProxyClients(t.Context())
		require.NoError(t, err)
		require.Len(t, all, 1)
		require.Equal(t, "p1", all[0].Proxy)
		require.JSONEq(t, `{"writes": 2}`, string(all[0].Envelope))
	},
}
