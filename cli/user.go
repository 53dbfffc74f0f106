package cli

import (
	"bufio"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"drover/internal/config"
	"drover/metadata"
	"drover/proxy/auth"
)

func newUserCommand(a *app) *cobra.Command {
	return group("user", "Manage who may use the proxies",
		newUserAdd(a), newUserList(a), newUserChange(a, true), newUserChange(a, false), newUserPasswd(a), newUserRemove(a))
}

// readPassword takes the first line of the standard input: an argument would be
// seen by everybody on the machine.
func (a *app) readPassword() (auth.Credentials, error) {
	line, err := bufio.NewReader(a.env.Stdin).ReadString('\n')
	if err != nil && line == "" {
		return auth.Credentials{}, &usageError{fmt.Errorf("the password is read from the standard input, which is empty")}
	}
	return auth.Derive(strings.TrimRight(line, "\r\n"))
}

// userOf gives the metadata's form of a user.
func userOf(name string, c auth.Credentials) metadata.ProxyUser {
	return metadata.ProxyUser{Name: name, Salt: c.Salt, Iterations: c.Iterations, StoredKey: c.StoredKey, ServerKey: c.ServerKey}
}

// parseGrant reads DATABASE:ACTION,ACTION.
func parseGrant(text string) (database string, actions []string, err error) {
	database, list, ok := strings.Cut(text, ":")
	actions = strings.Split(list, ",")
	for _, action := range actions {
		ok = ok && slices.Contains(auth.Actions(), auth.Action(action))
	}
	if !ok || database == "" {
		return "", nil, &usageError{fmt.Errorf("%q is no grant: write DATABASE:ACTION,ACTION with actions of %v; * is every database", text, auth.Actions())}
	}
	return database, actions, nil
}

func newUserAdd(a *app) *cobra.Command {
	var grants []string
	c := &cobra.Command{
		Use: "add NAME [--grant DB:ACTIONS]", Short: "Make a user; the password is read from the standard input", Args: cobra.ExactArgs(1),
		Example: "  drover user add shop --grant shop:read,write < shop.password",
		RunE: func(cmd *cobra.Command, args []string) error {
			for _, g := range grants {
				if _, _, err := parseGrant(g); err != nil {
					return err
				}
			}
			if err := auth.CheckName(args[0]); err != nil {
				return err
			}
			credentials, err := a.readPassword()
			if err != nil {
				return err
			}
			return a.withStore(cmd, func(ctx context.Context, store *metadata.Store) error {
				if err := store.PutProxyUser(ctx, userOf(args[0], credentials), false); err != nil {
					return err
				}
				for _, g := range grants {
					database, actions, _ := parseGrant(g) //nolint:errcheck // was read before
					if err := store.GrantProxyUser(ctx, args[0], database, actions); err != nil {
						return err
					}
				}
				return a.printUsers(ctx, store)
			})
		},
	}
	c.Flags().StringArrayVar(&grants, "grant", nil, "DATABASE:ACTION,ACTION; may be given several times")
	a.cfg.Flags(c.Flags(), config.Common)
	return c
}

func newUserList(a *app) *cobra.Command {
	c := &cobra.Command{
		Use: "list", Short: "List the users and their grants", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withStore(cmd, a.printUsers)
		},
	}
	a.cfg.Flags(c.Flags(), config.Common)
	return c
}

// printUsers shows the users without what verifies their passwords.
func (a *app) printUsers(ctx context.Context, store *metadata.Store) error {
	all, err := store.ProxyUsers(ctx)
	if err != nil {
		return err
	}
	type shown struct {
		Name   string              `json:"name"`
		Grants map[string][]string `json:"grants"`
	}
	out := make([]shown, 0, len(all))
	for _, u := range all {
		out = append(out, shown{u.Name, u.Grants})
	}
	return a.print(out, []string{"NAME", "GRANTS"}, func() (rows [][]string) {
		for _, u := range out {
			var grants []string
			for _, db := range slices.Sorted(maps.Keys(u.Grants)) {
				grants = append(grants, db+":"+strings.Join(u.Grants[db], ","))
			}
			rows = append(rows, []string{u.Name, strings.Join(grants, " ")})
		}
		return rows
	})
}

// newUserChange makes user grant and user revoke.
func newUserChange(a *app, give bool) *cobra.Command {
	use, short := "grant", "Allow a user actions on a database"
	change := (*metadata.Store).GrantProxyUser
	if !give {
		use, short, change = "revoke", "Take actions on a database from a user", (*metadata.Store).RevokeProxyUser
	}
	c := &cobra.Command{
		Use: use + " NAME DATABASE:ACTION,ACTION", Short: short, Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			database, actions, err := parseGrant(args[1])
			if err != nil {
				return err
			}
			return a.withStore(cmd, func(ctx context.Context, store *metadata.Store) error {
				if err := change(store, ctx, args[0], database, actions); err != nil {
					return err
				}
				return a.printUsers(ctx, store)
			})
		},
	}
	a.cfg.Flags(c.Flags(), config.Common)
	return c
}

func newUserPasswd(a *app) *cobra.Command {
	c := &cobra.Command{
		Use: "passwd NAME", Short: "Change a user's password, which is read from the standard input", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			credentials, err := a.readPassword()
			if err != nil {
				return err
			}
			return a.withStore(cmd, func(ctx context.Context, store *metadata.Store) error {
				if err := store.PutProxyUser(ctx, userOf(args[0], credentials), true); err != nil {
					return err
				}
				return a.told("the password of %s was changed", args[0])
			})
		},
	}
	a.cfg.Flags(c.Flags(), config.Common)
	return c
}

func newUserRemove(a *app) *cobra.Command {
	var yes bool
	c := &cobra.Command{
		Use: "remove NAME", Short: "Remove a user; its connections may do nothing any more within seconds", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withStore(cmd, func(ctx context.Context, store *metadata.Store) error {
				if err := a.confirm(yes, "removes the user "+args[0], args[0]); err != nil {
					return err
				}
				if err := store.RemoveProxyUser(ctx, args[0]); err != nil {
					return err
				}
				return a.told("the user %s was removed", args[0])
			})
		},
	}
	yesFlag(c, &yes)
	a.cfg.Flags(c.Flags(), config.Common)
	return c
}
