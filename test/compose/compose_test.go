// Package compose_test keeps docker-compose.yml in step with the programs that
// it runs: it is loaded as Docker would load it, and each variable, name and
// port in it is looked up where it is used.
package compose_test

import (
	"maps"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/compose-spec/compose-go/v2/types"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"drover/devstack"
	"drover/internal/config"
)

// root is the repository's, seen from here.
const root = "../.."

// load reads the file with nothing in the environment.
func load(t *testing.T) *types.Project {
	t.Helper()
	opts, err := cli.NewProjectOptions([]string{filepath.Join(root, "docker-compose.yml")}, cli.WithWorkingDirectory(root))
	require.NoError(t, err)
	project, err := opts.LoadProject(t.Context())
	require.NoError(t, err)
	return project
}

// drovers are the services that run the drover program, and their roles.
func drovers(p *types.Project) map[string]config.Role {
	out := map[string]config.Role{}
	for name, s := range p.Services {
		if len(s.Entrypoint) > 0 || len(s.Command) == 0 {
			continue
		}
		switch s.Command[0] {
		case "worker":
			out[name] = config.Worker
		case "proxy":
			out[name] = config.Proxy
		}
	}
	return out
}

// environment is a service's, as a lookup.
func environment(s types.ServiceConfig) func(string) (string, bool) {
	return func(name string) (string, bool) {
		v, ok := s.Environment[name]
		if !ok || v == nil {
			return "", false
		}
		return *v, true
	}
}

func TestEveryPartOfTheFleetIsThere(t *testing.T) {
	t.Parallel()
	p := load(t)
	want := []string{"postgres", "kafka", "s3", "bucket", "temporal", "key", "register", "worker", "worker-fence", "proxy-1", "proxy-2"}
	for _, shard := range devstack.DefaultShards {
		want = append(want, shard+"-1", shard+"-2", shard+"-3", shard+"-init")
	}
	slices.Sort(want)
	require.Equal(t, want, slices.Sorted(maps.Keys(p.Services)))
}

// What a process is given must be what it reads, and enough for it.
func TestEnvironmentIsWhatTheProgramsRead(t *testing.T) {
	t.Parallel()
	p := load(t)
	roles := drovers(p)
	require.Len(t, roles, 4)
	for name, role := range roles {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := p.Services[name]
			var cfg config.Config
			fs := pflag.NewFlagSet(name, pflag.ContinueOnError)
			cfg.Flags(fs, role)
			from, err := config.Load(fs, role, config.Source{LookupEnv: environment(s)})
			require.NoError(t, err)
			require.NoError(t, cfg.Validate(role))

			read := slices.Collect(maps.Values(from))
			other := map[string]bool{} // settings of other roles, which the shared block may name
			for _, d := range config.Docs() {
				other[d.Variable] = true
			}
			for variable := range s.Environment {
				if strings.HasPrefix(variable, "DROVER_") && !slices.Contains(read, variable) {
					require.True(t, other[variable], "nothing reads %s", variable)
				}
			}
			for _, d := range []string{"postgres-dsn", "kafka-brokers", "s3-endpoint", "s3-bucket", "temporal-address", "secret"} {
				require.True(t, strings.HasPrefix(from[d], "DROVER_"), "%s is left to the %s", d, from[d])
			}
		})
	}
}

// Each address that a process is given must be a service, and its port one
// that this service listens on.
func TestAddressesAreServicesThatListenThere(t *testing.T) {
	t.Parallel()
	p := load(t)
	listens := map[string]string{
		"postgres": "5432", // the image's
		"kafka":    portOf(t, value(t, p.Services["kafka"], "KAFKA_ADVERTISED_LISTENERS")),
		"s3":       strings.TrimPrefix(flagValue(p.Services["s3"].Command, "--port"), ":"),
		"temporal": flagValue(p.Services["temporal"].Command, "-port"),
	}
	for name := range drovers(p) {
		s := p.Services[name]
		dsn, err := url.Parse(value(t, s, "DROVER_POSTGRES_DSN"))
		require.NoError(t, err)
		endpoint, err := url.Parse(value(t, s, "DROVER_S3_ENDPOINT"))
		require.NoError(t, err)
		for _, address := range []string{dsn.Host, endpoint.Host, value(t, s, "DROVER_KAFKA_BROKERS"), value(t, s, "DROVER_TEMPORAL_ADDRESS")} {
			host, port, err := net.SplitHostPort(address)
			require.NoError(t, err)
			require.Contains(t, p.Services, host)
			require.Equal(t, listens[host], port, "%s is not where %s listens", address, host)
		}
		require.Equal(t, value(t, p.Services["postgres"], "POSTGRES_USER"), dsn.User.Username())
		password, _ := dsn.User.Password()
		require.Equal(t, value(t, p.Services["postgres"], "POSTGRES_PASSWORD"), password)
		require.Equal(t, "/"+value(t, p.Services["postgres"], "POSTGRES_DB"), dsn.Path)
		require.Equal(t, value(t, p.Services["s3"], "ROOT_ACCESS_KEY"), value(t, s, "DROVER_S3_ACCESS_KEY"))
		require.Equal(t, value(t, p.Services["s3"], "ROOT_SECRET_KEY"), value(t, s, "DROVER_S3_SECRET_KEY"))
		require.Equal(t, flagValue(p.Services["s3"].Command, "--region"), value(t, s, "DROVER_S3_REGION"))
		require.Contains(t, strings.Join(p.Services["bucket"].Command, " "), "--bucket "+value(t, s, "DROVER_S3_BUCKET"))
	}
}

// Every queue needs a worker, and the fence one that does not copy.
func TestQueuesAreServed(t *testing.T) {
	t.Parallel()
	p := load(t)
	served := map[string]bool{}
	for name, role := range drovers(p) {
		if role != config.Worker {
			continue
		}
		queues := strings.Split(value(t, p.Services[name], "DROVER_QUEUES"), ",")
		for _, q := range queues {
			served[q] = true
		}
		require.False(t, slices.Contains(queues, "fence") && slices.Contains(queues, "bulk"), "%s copies beside the fence", name)
	}
	require.Equal(t, map[string]bool{"control": true, "bulk": true, "fence": true}, served)
}

// A proxy's published port must be the one that it listens on, on loopback
// only, and no two services may want the same.
func TestPublishedPortsAreDistinctAndLocal(t *testing.T) {
	t.Parallel()
	p := load(t)
	published := map[string]string{}
	for name, s := range p.Services {
		for _, port := range s.Ports {
			require.Equal(t, "127.0.0.1", port.HostIP, name)
			require.NotContains(t, published, port.Published, name)
			published[port.Published] = name
		}
	}
	for name, role := range drovers(p) {
		if role != config.Proxy {
			continue
		}
		require.Len(t, p.Services[name].Ports, 1)
		_, port, err := net.SplitHostPort(value(t, p.Services[name], "DROVER_PROXY_LISTEN"))
		require.NoError(t, err)
		require.Equal(t, port, strconv.Itoa(int(p.Services[name].Ports[0].Target)))
	}
	for _, flag := range []string{"-port", "-ui-port"} {
		require.Contains(t, published, flagValue(p.Services["temporal"].Command, flag))
	}
}

// Each shard is a real set: three members of one name, with authentication, a
// shared key and a volume each, initiated once.
func TestShardsAreReplicaSetsOfThreeWithAKey(t *testing.T) {
	t.Parallel()
	p := load(t)
	volumes := map[string]bool{}
	for _, shard := range devstack.DefaultShards {
		for _, n := range []string{"1", "2", "3"} {
			s := p.Services[shard+"-"+n]
			require.Equal(t, "mongo:8.0", s.Image)
			require.Equal(t, shard, flagValue(s.Command, "--replSet"))
			require.Contains(t, s.Command, "--auth")
			require.Equal(t, "/key/keyfile", flagValue(s.Command, "--keyFile"))
			require.Contains(t, s.DependsOn, "key")
			for _, v := range s.Volumes {
				if v.Target == "/data/db" {
					require.False(t, volumes[v.Source], "%s is used twice", v.Source)
					volumes[v.Source] = true
				}
			}
		}
		job := p.Services[shard+"-init"]
		require.Equal(t, "service:"+shard+"-1", job.NetworkMode, "only over loopback may the first user be made")
		require.Equal(t, shard, value(t, job, "SHARD"))
		require.Equal(t, value(t, job, "ROOT_PASSWORD"), value(t, p.Services["register"], "ROOT_PASSWORD"))
		require.Contains(t, strings.Fields(value(t, p.Services["register"], "SHARDS")), shard)
	}
	require.Len(t, volumes, 9)
}

// The server's flags are declared in the nested module, which this one cannot
// import.
func TestTemporalKnowsItsFlags(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile(filepath.Join(root, "devstack", "temporal", "options.go"))
	require.NoError(t, err)
	for _, word := range load(t).Services["temporal"].Command {
		if name, ok := strings.CutPrefix(word, "-"); ok {
			require.Contains(t, string(source), `"`+name+`"`)
		}
	}
}

// What is mounted, built and copied must be in the repository.
func TestFilesExist(t *testing.T) {
	t.Parallel()
	p := load(t)
	dockerfile, err := os.ReadFile(filepath.Join(root, "deploy", "Dockerfile"))
	require.NoError(t, err)
	for name, s := range p.Services {
		if s.Build != nil {
			require.FileExists(t, filepath.Join(s.Build.Context, s.Build.Dockerfile), name)
			require.Regexp(t, `(?m)^FROM \S+ AS `+regexp.QuoteMeta(s.Build.Target)+`$`, string(dockerfile), name)
		}
		for _, v := range s.Volumes {
			if v.Type == types.VolumeTypeBind {
				require.FileExists(t, v.Source, name)
			}
		}
		for dependency := range s.DependsOn {
			require.Contains(t, p.Services, dependency, name)
		}
	}
	for _, line := range regexp.MustCompile(`(?m)^COPY ([^-\n].*) \S+$`).FindAllStringSubmatch(string(dockerfile), -1) {
		for source := range strings.FieldsSeq(line[1]) {
			_, err := os.Stat(filepath.Join(root, source))
			require.NoError(t, err)
		}
	}
}

func TestScriptsParse(t *testing.T) {
	t.Parallel()
	for _, pattern := range []string{"deploy/*.sh", "scripts/*.sh", ".ci/run"} {
		files, err := filepath.Glob(filepath.Join(root, pattern))
		require.NoError(t, err)
		require.NotEmpty(t, files, pattern)
		for _, f := range files {
			out, err := exec.CommandContext(t.Context(), "bash", "-n", f).CombinedOutput()
			require.NoError(t, err, "%s: %s", f, out)
		}
	}
}

// value is a variable of a service that must be there.
func value(t *testing.T, s types.ServiceConfig, name string) string {
	t.Helper()
	v, ok := environment(s)(name)
	require.True(t, ok, "%s has no %s", s.Name, name)
	return v
}

// portOf is the port at the end of a listener.
func portOf(t *testing.T, listener string) string {
	t.Helper()
	u, err := url.Parse(listener)
	require.NoError(t, err)
	return u.Port()
}

// flagValue is the word after a flag.
func flagValue(command []string, flag string) string {
	i := slices.Index(command, flag)
	if i < 0 || i+1 == len(command) {
		return ""
	}
	return command[i+1]
}
