package devstack

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"drover/internal/failure"
)

// startTimeout is how long one part may take to become ready. On a machine with
// much else to do, a Java program may need most of a minute.
const startTimeout = 3 * time.Minute

// reservedNames are the parts that are not shards.
var reservedNames = []string{"postgres", "kafka", "s3", "temporal"}

// isReserved reports whether name is a part that is no shard.
func isReserved(name string) bool { return slices.Contains(reservedNames, name) }

// Options say which stack is meant and what it shall have.
type Options struct {
	Dir    string   // the stack's folder; [DefaultDir] when empty
	Parts  []string // only these parts; all when empty
	Shards []string // names of the shards; those the stack has, else [DefaultShards], when empty
	Kafka  string   // EngineKafka or EngineEmbedded; what the stack has, else EngineKafka, when empty
	Self   []string // the command that runs [RunEmbeddedKafka] on the port that follows it
	Tools  Tools    // where programs are; [NewTools] when zero
}

// Progress is told what happens to a part. It may be called from several
// goroutines, but never twice at once.
type Progress func(part, message string)

// PartStatus is one line of [Status].
type PartStatus struct {
	Name    string `json:"name"`
	Engine  string `json:"engine"`
	Running bool   `json:"running"`
	Healthy bool   `json:"healthy"`
	PID     int    `json:"pid,omitempty"`
	Address string `json:"address"`
	Log     string `json:"log"`
	Problem string `json:"problem,omitempty"`
}

// part is what Up and its siblings need of each server.
type part interface {
	start(ctx context.Context) error
	ready(ctx context.Context) error
	remove() error
	base() *process
	about() (engine, address string)
}

// DefaultDir is the stack's folder: that of the state file which DROVER_STACK
// names, else .drover in the checkout or in the working directory.
func DefaultDir(lookup func(string) (string, bool)) (string, error) {
	if file, ok := lookup("DROVER_STACK"); ok && file != "" {
		if filepath.Base(file) != StateFile {
			return "", failure.New(failure.Invalid, "devstack.state-path", "DROVER_STACK is %q, which is no %s", file, StateFile).
				WithHint("let it name a file %s in the folder of the stack", StateFile)
		}
		return filepath.Abs(filepath.Dir(file))
	}
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	if root := checkout(dir); root != "" {
		dir = root
	}
	return filepath.Join(dir, ".drover"), nil
}

// resolve fills in what the caller left open.
func (o Options) resolve() (Options, error) {
	var err error
	if o.Dir == "" {
		if o.Dir, err = DefaultDir(os.LookupEnv); err != nil {
			return o, err
		}
	}
	if o.Dir, err = filepath.Abs(o.Dir); err != nil {
		return o, err
	}
	// The mark of a process is its folder, so it must have one name only.
	if path, err := filepath.EvalSymlinks(o.Dir); err == nil {
		o.Dir = path
	}
	if o.Tools.Cache == "" {
		if o.Tools, err = NewTools(); err != nil {
			return o, err
		}
	}
	return o, nil
}

// Up starts the parts that do not run, several at once, and returns when all
// are ready. Calling it again changes nothing.
func Up(ctx context.Context, opts Options, progress Progress) (*Stack, error) {
	opts, err := opts.resolve()
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(opts.Dir, 0o755); err != nil {
		return nil, err
	}
	if opts, err = opts.resolve(); err != nil { // a link on the way shows only now
		return nil, err
	}
	unlock, err := lock(ctx, opts.Dir)
	if err != nil {
		return nil, err
	}
	defer unlock()

	stack, err := Load(statePath(opts.Dir))
	if failure.HasCode(err, "devstack.no-stack") {
		stack, err = &Stack{}, nil
	}
	if err != nil {
		return nil, err
	}
	if len(opts.Shards) == 0 && len(stack.Shards) == 0 {
		opts.Shards = DefaultShards
	}
	if err := stack.mayChangeKafka(opts); err != nil {
		return nil, err
	}
	if err := stack.complete(opts, opts.Tools); err != nil {
		return nil, err
	}
	// Before anything runs: what is started must be found again.
	if err := stack.save(statePath(opts.Dir)); err != nil {
		return nil, err
	}
	parts, err := stack.parts(opts)
	if err != nil {
		return nil, err
	}
	if err := startAll(ctx, parts, serialise(progress)); err != nil {
		return nil, err
	}
	return stack, nil
}

// mayChangeKafka refuses another engine while the one that the stack has runs.
func (s *Stack) mayChangeKafka(opts Options) error {
	if opts.Kafka == "" || s.Kafka.Engine == "" || opts.Kafka == s.Kafka.Engine {
		return nil
	}
	s.Dir = opts.Dir
	if newKafka(s, opts.Tools, opts.Self).pid() == 0 {
		return nil
	}
	return failure.New(failure.Invalid, "devstack.kafka-runs", "Kafka runs as %q and cannot become %q meanwhile", s.Kafka.Engine, opts.Kafka).
		WithHint("stop it with `drover dev down --part kafka`; what one engine holds the other does not know")
}

// startAll starts what does not run. A part that fails does not stop the
// others: the next Up has less to do.
func startAll(ctx context.Context, parts []part, progress Progress) error {
	var (
		g    errgroup.Group
		mu   sync.Mutex
		errs []error
	)
	g.SetLimit(4)
	for _, p := range parts {
		g.Go(func() error {
			if err := startOne(ctx, p, progress); err != nil {
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, err)
			}
			return nil
		})
	}
	_ = g.Wait()
	return errors.Join(errs...)
}

// startOne starts p unless it runs and answers.
func startOne(ctx context.Context, p part, progress Progress) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	base := p.base()
	began := time.Now()
	if pid := base.pid(); pid != 0 {
		// It may be starting still, hang, or be about to end.
		err := base.await(ctx, watch(ctx, pid), p.ready)
		if err == nil {
			progress(base.name, "is running")
			return nil
		}
		if alive(pid) {
			return failure.New(failure.Transient, "devstack.hangs", "%s runs (pid %d) but does not answer: %w", base.name, pid, err).
				WithHint("look at %s; `drover dev down` and `drover dev up` start it again", base.logFile())
		}
	}
	progress(base.name, "starting")
	if err := p.start(ctx); err != nil {
		progress(base.name, "failed")
		return fmt.Errorf("%s: %w", base.name, err)
	}
	progress(base.name, fmt.Sprintf("ready after %.1f s", time.Since(began).Seconds()))
	return nil
}

// Status looks at each part of a stack, whether it runs and whether it answers.
func Status(ctx context.Context, opts Options) (*Stack, []PartStatus, error) {
	opts, err := opts.resolve()
	if err != nil {
		return nil, nil, err
	}
	stack, err := Load(statePath(opts.Dir))
	if err != nil {
		return nil, nil, err
	}
	parts, err := stack.parts(opts)
	if err != nil {
		return nil, nil, err
	}
	lines := make([]PartStatus, len(parts))
	var wg sync.WaitGroup
	for i, p := range parts {
		wg.Go(func() { lines[i] = look(ctx, p) })
	}
	wg.Wait()
	return stack, lines, nil
}

// look describes p as it is now.
func look(ctx context.Context, p part) PartStatus {
	base := p.base()
	s := PartStatus{Name: base.name, PID: base.pid(), Log: base.logFile()}
	s.Engine, s.Address = p.about()
	s.Running = s.PID != 0
	if !s.Running {
		s.Problem = "not running"
		return s
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if err := p.ready(ctx); err != nil {
		s.Problem = err.Error()
		return s
	}
	s.Healthy = true
	return s
}

// Down ends the parts, in order where they let it and by force where they do
// not, and keeps their data.
func Down(ctx context.Context, opts Options, progress Progress) error {
	opts, err := opts.resolve()
	if err != nil {
		return err
	}
	stack, err := Load(statePath(opts.Dir))
	if failure.HasCode(err, "devstack.no-stack") {
		return nil
	}
	if err != nil {
		return err
	}
	unlock, err := lock(ctx, opts.Dir)
	if err != nil {
		return err
	}
	defer unlock()
	return stack.down(ctx, opts, serialise(progress))
}

// down ends the parts of s.
func (s *Stack) down(ctx context.Context, opts Options, progress Progress) error {
	parts, err := s.parts(opts)
	if err != nil {
		return err
	}
	errs := make([]error, len(parts))
	var wg sync.WaitGroup
	for i, p := range parts {
		wg.Go(func() {
			base := p.base()
			running := base.pid() != 0
			errs[i] = base.end(ctx)
			if running && errs[i] == nil {
				progress(base.name, "stopped")
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// Reset ends the parts and removes their data. Without a choice of parts the
// ports and passwords are forgotten too.
func Reset(ctx context.Context, opts Options, progress Progress) error {
	opts, err := opts.resolve()
	if err != nil {
		return err
	}
	stack, err := Load(statePath(opts.Dir))
	if failure.HasCode(err, "devstack.no-stack") {
		return nil
	}
	if err != nil {
		return err
	}
	unlock, err := lock(ctx, opts.Dir)
	if err != nil {
		return err
	}
	defer unlock()
	progress = serialise(progress)
	if err := stack.down(ctx, opts, progress); err != nil {
		return err
	}
	parts, err := stack.parts(opts)
	if err != nil {
		return err
	}
	for _, p := range parts {
		if err := p.remove(); err != nil {
			return fmt.Errorf("remove the data of %s: %w", p.base().name, err)
		}
		progress(p.base().name, "data removed")
	}
	if len(opts.Parts) > 0 {
		return nil
	}
	return removeIfExists(statePath(opts.Dir))
}

// parts are the servers of s that opts asks for.
func (s *Stack) parts(opts Options) ([]part, error) {
	s.Dir = opts.Dir // it may have been moved
	all := []part{
		newKafka(s, opts.Tools, opts.Self), newTemporal(s, opts.Tools),
		newPostgres(s, opts.Tools), newS3(s, opts.Tools),
	}
	for _, a := range s.Shards {
		all = append(all, newShard(s.Dir, a, opts.Tools))
	}
	if len(opts.Parts) == 0 {
		return all, nil
	}
	var chosen []part
	for _, name := range opts.Parts {
		i := slices.IndexFunc(all, func(p part) bool { return p.base().name == name })
		if i < 0 {
			return nil, failure.New(failure.Invalid, "devstack.unknown-part", "the stack has no part %q", name).
				WithHint("its parts are %s", names(all))
		}
		chosen = append(chosen, all[i])
	}
	return chosen, nil
}

// names lists parts for a message.
func names(parts []part) []string {
	var out []string
	for _, p := range parts {
		out = append(out, p.base().name)
	}
	return out
}

// serialise lets parallel starts share one progress function; nil is silence.
func serialise(progress Progress) Progress {
	if progress == nil {
		return func(string, string) {}
	}
	var mu sync.Mutex
	return func(part, message string) {
		mu.Lock()
		defer mu.Unlock()
		progress(part, message)
	}
}

// lock keeps two commands from starting the same part twice. The kernel frees
// it when its holder dies.
func lock(ctx context.Context, dir string) (unlock func(), err error) {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	for {
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { _ = f.Close() }, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, errors.Join(err, f.Close())
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(fmt.Errorf("wait for another command on the stack in %s: %w", dir, context.Cause(ctx)), f.Close())
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// base gives access to what all parts have.
func (p *process) base() *process { return p }

// remove deletes the part's folder.
func (p *process) remove() error { return os.RemoveAll(p.dir) }

func (p *postgresServer) about() (engine, address string) {
	return "postgres", fmt.Sprintf("127.0.0.1:%d", p.access.Port)
}

func (k *kafkaServer) about() (engine, address string) { return k.access.Engine, k.access.Brokers[0] }
func (s *s3Server) about() (engine, address string)    { return "versitygw", s.access.Endpoint }

func (t *temporalServer) about() (engine, address string) {
	return "temporal", t.access.Address + " " + t.access.UI
}

func (s *ShardServer) about() (engine, address string) {
	return s.access.Engine, fmt.Sprintf("127.0.0.1:%d", s.access.Port)
}
