// Package devstack runs every server that Drover needs on one machine, for the
// demo, the tests and for trying things out: Temporal with its web UI, Postgres,
// Kafka, an S3 server and MongoDB shards, each as a process of its own that
// outlives the command that started it.
//
// Everything lives under one folder (.drover by default): a state file with
// addresses, ports and credentials, and for each part its data, log and pid
// file. [Up] starts only what is not running, on the ports that were chosen the
// first time, so that a part which was killed comes back with its data where its
// clients look for it. Everything listens on the loopback address only.
package devstack
