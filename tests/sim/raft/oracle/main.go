// Members that are etcd's own raft, as a process that answers JSON lines: one request a line, one answer a line.
//
// The simulation of mixed clusters starts it (etcd.py). Nothing happens between two requests, and a member never stands
// for election by itself: "wait" lets time pass at a member that does not lead, and "campaign" makes it stand. So the
// same requests give the same answers, though etcd's raft draws its own random time-outs.
//
//	{"op":"new","id":1,"voters":[1,2],"learners":[],"election":10,"heartbeat":1}  a founder, at index 1 of term 1
//	{"op":"new","id":4,"election":10,"heartbeat":1}                               one that is to be added
//	{"op":"tick","id":1} {"op":"wait","id":1} {"op":"campaign","id":1} {"op":"step","id":1,"msg":{...}}
//	{"op":"propose","id":1,"data":"text"} {"op":"change","id":1,"kind":"voter","node":4}
//	{"op":"read","id":1,"data":"context"} {"op":"transfer","id":1,"node":2}
//	{"op":"unreachable","id":1,"node":2}   what was sent to it last may be lost, a snapshot, too
//	{"op":"drop","id":1,"index":7}         drop entries up to 7
//	{"op":"reset"}                         forget all members
//
// The replicated state is the list of texts that were applied; a snapshot holds all of them, by lines.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io/ioutil"
	"log"
	"os"
	"strings"

	"go.etcd.io/etcd/raft"
	pb "go.etcd.io/etcd/raft/raftpb"
)

type entry struct {
	Term   uint64 `json:"term"`
	Index  uint64 `json:"index"`
	Data   string `json:"data"`
	Change string `json:"change"`
}

type snapshot struct {
	Index    uint64   `json:"index"`
	Term     uint64   `json:"term"`
	Voters   []uint64 `json:"voters"`
	Learners []uint64 `json:"learners"`
	Data     string   `json:"data"`
}

type message struct {
	Type     string    `json:"type"`
	To       uint64    `json:"to"`
	From     uint64    `json:"from"`
	Term     uint64    `json:"term"`
	LogTerm  uint64    `json:"logTerm"`
	Index    uint64    `json:"index"`
	Entries  []entry   `json:"entries"`
	Commit   uint64    `json:"commit"`
	Reject   bool      `json:"reject"`
	Hint     uint64    `json:"hint"`
	Context  string    `json:"context"`
	Snapshot *snapshot `json:"snapshot"`
}

type request struct {
	Op        string
	ID        uint64
	Voters    []uint64
	Learners  []uint64
	Election  int
	Heartbeat int
	Msg       message
	Data      string
	Kind      string
	Node      uint64
	Index     uint64
}

type read struct {
	Index   uint64 `json:"index"`
	Context string `json:"context"`
}

// answer tells what a member did, in order, and what it is now.
type answer struct {
	Messages []message `json:"messages"`
	Applied  []entry   `json:"applied"`
	Restored *snapshot `json:"restored"`
	Reads    []read    `json:"reads"`
	Tail     []entry   `json:"tail"`
	Term     uint64    `json:"term"`
	Lead     uint64    `json:"lead"`
	Role     string    `json:"role"`
	Index    uint64    `json:"index"`
	Voters   []uint64  `json:"voters"`
	Learners []uint64  `json:"learners"`
	Error    string    `json:"error"`
}

var kinds = map[string]pb.ConfChangeType{
	"voter": pb.ConfChangeAddNode, "learner": pb.ConfChangeAddLearnerNode, "remove": pb.ConfChangeRemoveNode}

var roles = map[raft.StateType]string{raft.StateFollower: "follower", raft.StateCandidate: "candidate",
	raft.StatePreCandidate: "pre-candidate", raft.StateLeader: "leader"}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func changeOf(e pb.Entry) pb.ConfChange {
	var change pb.ConfChange
	check(change.Unmarshal(e.Data))
	return change
}

func fromEntry(e pb.Entry) entry {
	if e.Type != pb.EntryConfChange {
		return entry{Term: e.Term, Index: e.Index, Data: string(e.Data)}
	}
	change := changeOf(e)
	for name, kind := range kinds {
		if kind == change.Type {
			return entry{Term: e.Term, Index: e.Index, Change: fmt.Sprintf("%s %d", name, change.NodeID)}
		}
	}
	panic("a change of no known kind")
}

func toEntry(e entry) pb.Entry {
	out := pb.Entry{Term: e.Term, Index: e.Index}
	if e.Change != "" {
		var kind string
		var node uint64
		_, err := fmt.Sscanf(e.Change, "%s %d", &kind, &node)
		check(err)
		change := pb.ConfChange{Type: kinds[kind], NodeID: node}
		out.Type = pb.EntryConfChange
		out.Data, err = change.Marshal()
		check(err)
	} else if e.Data != "" {
		out.Data = []byte(e.Data)
	}
	return out
}

func fromEntries(entries []pb.Entry) []entry {
	out := []entry{}
	for _, e := range entries {
		out = append(out, fromEntry(e))
	}
	return out
}

func fromSnapshot(s pb.Snapshot) *snapshot {
	if raft.IsEmptySnap(s) {
		return nil
	}
	m := s.Metadata
	return &snapshot{m.Index, m.Term, m.ConfState.Voters, m.ConfState.Learners, string(s.Data)}
}

func fromMessage(m pb.Message) message {
	return message{m.Type.String(), m.To, m.From, m.Term, m.LogTerm, m.Index, fromEntries(m.Entries), m.Commit, m.Reject,
		m.RejectHint, string(m.Context), fromSnapshot(m.Snapshot)}
}

func toMessage(m message) pb.Message {
	out := pb.Message{Type: pb.MessageType(pb.MessageType_value[m.Type]), To: m.To, From: m.From, Term: m.Term,
		LogTerm: m.LogTerm, Index: m.Index, Commit: m.Commit, Reject: m.Reject, RejectHint: m.Hint}
	if m.Context != "" {
		out.Context = []byte(m.Context)
	}
	for _, e := range m.Entries {
		out.Entries = append(out.Entries, toEntry(e))
	}
	if s := m.Snapshot; s != nil {
		conf := pb.ConfState{Voters: s.Voters, Learners: s.Learners}
		out.Snapshot = pb.Snapshot{Data: []byte(s.Data),
			Metadata: pb.SnapshotMetadata{Index: s.Index, Term: s.Term, ConfState: conf}}
	}
	return out
}

// member is one member, and its storage: what etcd's raft keeps between two steps.
type member struct {
	*raft.MemoryStorage
	node    *raft.RawNode
	applied uint64
	conf    pb.ConfState
	texts   []string
}

// Snapshot makes a snapshot of what was applied, when etcd's raft needs one.
func (m *member) Snapshot() (pb.Snapshot, error) {
	last, err := m.MemoryStorage.Snapshot()
	if err != nil || m.applied <= last.Metadata.Index {
		return last, err
	}
	return m.CreateSnapshot(m.applied, &m.conf, []byte(strings.Join(m.texts, "\n")))
}

func newMember(r request) *member {
	m := &member{MemoryStorage: raft.NewMemoryStorage(), conf: pb.ConfState{Voters: r.Voters, Learners: r.Learners}}
	if len(r.Voters) > 0 {
		check(m.ApplySnapshot(pb.Snapshot{Metadata: pb.SnapshotMetadata{Index: 1, Term: 1, ConfState: m.conf}}))
		check(m.SetHardState(pb.HardState{Term: 1, Commit: 1}))
		m.applied = 1
	}
	var err error
	m.node, err = raft.NewRawNode(&raft.Config{ID: r.ID, ElectionTick: r.Election, HeartbeatTick: r.Heartbeat, Storage: m,
		Applied: m.applied, MaxSizePerMsg: 1 << 20, MaxInflightMsgs: 256, CheckQuorum: true, PreVote: true,
		Logger: &raft.DefaultLogger{Logger: log.New(ioutil.Discard, "", 0)}})
	check(err)
	return m
}

func (m *member) do(r request) error {
	switch r.Op {
	case "new":
	case "tick":
		m.node.Tick()
	case "wait":
		m.node.TickQuiesced()
	case "campaign":
		return m.node.Campaign()
	case "step":
		return m.node.Step(toMessage(r.Msg))
	case "propose":
		return m.node.Propose([]byte(r.Data))
	case "change":
		return m.node.ProposeConfChange(pb.ConfChange{Type: kinds[r.Kind], NodeID: r.Node})
	case "read":
		m.node.ReadIndex([]byte(r.Data))
	case "transfer":
		m.node.TransferLeader(r.Node)
	case "unreachable":
		m.node.ReportUnreachable(r.Node)
		m.node.ReportSnapshot(r.Node, raft.SnapshotFailure)
	case "drop":
		_, err := m.Snapshot()
		check(err)
		if err := m.Compact(r.Index); err != raft.ErrCompacted {
			return err
		}
	default:
		return fmt.Errorf("unknown op %q", r.Op)
	}
	return nil
}

// settle makes stable and applies all that is ready, as an application would.
func (m *member) settle(a *answer) {
	for m.node.HasReady() {
		ready := m.node.Ready()
		if !raft.IsEmptySnap(ready.Snapshot) {
			check(m.ApplySnapshot(ready.Snapshot))
			m.applied, m.conf = ready.Snapshot.Metadata.Index, ready.Snapshot.Metadata.ConfState
			m.texts = nil
			if len(ready.Snapshot.Data) > 0 {
				m.texts = strings.Split(string(ready.Snapshot.Data), "\n")
			}
			a.Restored = fromSnapshot(ready.Snapshot)
		}
		if !raft.IsEmptyHardState(ready.HardState) {
			check(m.SetHardState(ready.HardState))
		}
		check(m.Append(ready.Entries))
		for _, e := range ready.CommittedEntries {
			a.Applied = append(a.Applied, fromEntry(e))
			m.applied = e.Index
			if e.Type == pb.EntryConfChange {
				m.conf = *m.node.ApplyConfChange(changeOf(e))
			} else if len(e.Data) > 0 {
				m.texts = append(m.texts, string(e.Data))
			}
		}
		for _, msg := range ready.Messages {
			a.Messages = append(a.Messages, fromMessage(msg))
		}
		for _, r := range ready.ReadStates {
			a.Reads = append(a.Reads, read{r.Index, string(r.RequestCtx)})
		}
		m.node.Advance(ready)
	}
	status := m.node.BasicStatus()
	a.Term, a.Lead, a.Role, a.Index = status.Term, status.Lead, roles[status.RaftState], m.applied
	a.Voters, a.Learners = m.conf.Voters, m.conf.Learners
	last, err := m.LastIndex()
	check(err)
	if last > m.applied {
		tail, err := m.Entries(m.applied+1, last+1, 1<<30)
		check(err)
		a.Tail = fromEntries(tail)
	}
}

func main() {
	members := map[uint64]*member{}
	in, out := bufio.NewScanner(os.Stdin), bufio.NewWriter(os.Stdout)
	in.Buffer(make([]byte, 1<<20), 1<<26)
	encoder := json.NewEncoder(out)
	for in.Scan() {
		var r request
		check(json.Unmarshal(in.Bytes(), &r))
		var a answer
		if r.Op == "reset" {
			members = map[uint64]*member{}
		} else {
			if r.Op == "new" {
				members[r.ID] = newMember(r)
			}
			m := members[r.ID]
			if err := m.do(r); err != nil {
				a.Error = err.Error()
			}
			m.settle(&a)
		}
		check(encoder.Encode(a))
		check(out.Flush())
	}
}
