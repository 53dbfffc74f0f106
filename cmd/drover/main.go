// Command drover moves chunks of data between MongoDB shards while they are in use.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"drover/cli"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := cli.Main(ctx, cli.Env{
		Args: os.Args[1:], Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, LookupEnv: os.LookupEnv,
	})
	stop()
	os.Exit(code)
}
