// Command cost moves a chunk that an application uses from one shard of the dev
// stack to another, and says what that took: time by phase, what was read, stored
// and written, and what the application felt. It runs a worker and a proxy of its
// own, and leaves a database behind that `drover dev reset` forgets.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"drover/bench/figures"
	"drover/devstack"
)

func main() { figures.Main(func(ctx context.Context) error { return run(ctx, os.Stdout) }) }

// run is main with errors.
func run(ctx context.Context, out io.Writer) error {
	s := size{}
	flag.IntVar(&s.documents, "documents", 20_000, "documents of the chunk, of about 1 KB")
	flag.IntVar(&s.rate, "rate", 200, "operations per second of the application")
	flag.Parse()
	if s.documents < 1 || s.rate < 1 {
		return fmt.Errorf("documents is %d, rate %d; want 1 at least", s.documents, s.rate)
	}
	dir, err := devstack.DefaultDir(os.LookupEnv)
	if err != nil {
		return err
	}
	stack, err := devstack.Load(filepath.Join(dir, devstack.StateFile))
	if err != nil {
		return fmt.Errorf("%w: make stack starts the dev stack", err)
	}
	f := &fleet{
		lookup:   os.LookupEnv,
		database: "cost_" + strconv.FormatInt(time.Now().Unix(), 36),
		bucket:   stack.S3,
	}
	for _, sh := range stack.Shards[:2] {
		f.shards = append(f.shards, server{sh.Name, sh.AdminURI})
	}
	_, err = f.lesson(ctx, out, s)
	return err
}

// size of the lesson.
type size struct{ documents, rate int }
