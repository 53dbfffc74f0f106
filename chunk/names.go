package chunk

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// SystemDatabase is Drover's own database on every shard. It holds the
// collections named below and is seen by change streams.
const SystemDatabase = "drover"

// Collections of [SystemDatabase].
const (
	MarkersCollection     = "markers"     // see [Marker]
	FencesCollection      = "fences"      // fence documents and open records, one per placement
	CheckpointsCollection = "checkpoints" // one document per lane; only replicators write it
	ParkedCollection      = "parked"      // documents that wait for a unique key
)

// Users that Drover makes on every shard, in database admin. Their passwords
// derive from the fleet's secret, see docs/configuration.md.
const (
	AdminUser   = "drover_admin"
	DataUser    = "drover_data" // the proxies' user: it holds the grants
	LoaderUser  = "drover_load"
	ApplierUser = "drover_repl"
	CaptureUser = "drover_capture"
	ReaderUser  = "drover_read" // import and validation read with it

	RemediatorUser = "drover_remedy" // changes the replica set itself
)

// PhysicalName is the database that holds a placement: "payments_0007_p42".
// The placement id in it is what makes a leftover copy recognisable for ever.
func PhysicalName(id ID, p PlacementID) string {
	return fmt.Sprintf("%s_p%d", strings.ReplaceAll(string(id), "/", "_"), p)
}

// OwnName is the name of a placement's database where it is not of Drover's naming:
// that of a database which was adopted. "" for any other.
func (p Placement) OwnName() string {
	if p.Database == "" || p.Database == PhysicalName(p.Chunk, p.ID) {
		return ""
	}
	return p.Database
}

var physicalName = regexp.MustCompile(`^.+_\d{4,}_p(\d+)$`)

// PlacementOf tells which placement a physical database holds; ok is false for
// a database that is not of Drover's naming.
func PlacementOf(database string) (p PlacementID, ok bool) {
	m := physicalName.FindStringSubmatch(database)
	if m == nil {
		return 0, false
	}
	n, err := strconv.ParseInt(m[1], 10, 64)
	return PlacementID(n), err == nil
}

// CloneName is the database of a clone: "payments_0007_c42". It is no placement's
// name, so that nothing takes it for one.
func CloneName(id ID, clone MigrationID) string {
	return fmt.Sprintf("%s_c%d", strings.ReplaceAll(string(id), "/", "_"), clone)
}

var cloneName = regexp.MustCompile(`^(.+)_c\d+$`)

// IsClone reports whether a database has the name of a clone's.
func IsClone(database string) bool { return cloneName.MatchString(database) }

// CloneOf gives the part of a clone's name that names its chunk, as [CloneName] has
// it; empty for any other database.
func CloneOf(database string) ID {
	m := cloneName.FindStringSubmatch(database)
	if m == nil {
		return ""
	}
	return ID(m[1])
}

// WriteGrant is the role that allows writes to p, made for attempt a: "w_p42_a6".
func WriteGrant(p PlacementID, a AttemptID) string { return fmt.Sprintf("w_p%d_a%d", p, a) }

// ReadGrant is the role that allows reads of p, made for attempt a: "r_p42_a6".
func ReadGrant(p PlacementID, a AttemptID) string { return fmt.Sprintf("r_p%d_a%d", p, a) }

// LoaderRole allows one migration's import to load p: "l_p43_m7".
func LoaderRole(p PlacementID, m MigrationID) string { return fmt.Sprintf("l_p%d_m%d", p, m) }

// ApplierRole allows the lanes of one direction to change p: "a_p43_m7_d0".
func ApplierRole(p PlacementID, m MigrationID, d AttemptID) string {
	return fmt.Sprintf("a_p%d_m%d_d%d", p, m, d)
}

// Topic is the Kafka topic of a shard's captured log.
func Topic(shard string) string { return "drover.log." + shard }
