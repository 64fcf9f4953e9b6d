/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who owns the guest: the hand-over between a source (A) and a destination (B), from the stop on A
 * to the first instruction on B. docs/switchover.md explains it; scripts/model checks it.
 *
 *   RECORD    defined: both sides share an owner record (a file with an epoch, under an OFD lock).
 *             Not defined: two hosts without one; what is in doubt waits for an operator.
 *   DISKLESS  the guest has no disks, so that no disk lock can come to the rescue.
 *   BREAK_*   breaks one rule. scripts/model expects the checker to find an error for each.
 *
 * Anything may happen between two steps: SIGKILL of A, of B, or of both; a cut of the wire with the
 * messages in flight delivered or lost; a deadline on either side (every wait can end at once); a
 * disk lock that cannot be had. A killed process runs nothing more, but the kernel closes its socket,
 * its record lock and its disk locks one after the other, in any order.
 */

#define A 0
#define B 1
#define NOBODY 2

#ifdef DISKLESS
#define DISKS_OF(who) NOBODY
#define DISK_FAULTS 0
#else
#define DISKS_OF(who) who
#define DISK_FAULTS 2
#endif

#define E 1 /* the epoch of the guest before the move */

#ifdef RECORD
#define WITH_RECORD true
#else
#define WITH_RECORD false
#endif

mtype = { PREPARE, VOTE_YES, VOTE_NO, COMMIT, ABORT, RUNNING, REFUSED };
mtype = { NONE, HERE, THERE };

chan to_a = [6] of { mtype };
chan to_b = [6] of { mtype };

/* The world outside the two processes. */
bool wire = true;
byte record_lock = A, record_owner = A, epoch = E;
byte disk_lock = DISKS_OF(A);
byte disk_faults = DISK_FAULTS; /* how many more times a disk lock may fail for no reason seen here */
mtype operator = NONE;

/* The two processes, as the world sees them. */
bool alive[2] = true;
bool closed[2];  /* the peer sees the end of the stream */
bool running[2]; /* vCPUs in KVM_RUN */
bool paused[2];  /* settled: stopped with the whole guest in memory, a named command goes on */
bool moved;      /* A settled: postmigrate */

/* Ghosts: what happened, for the properties only. */
bool voted, b_gave_up, a_again, b_ran, killed[2], orphaned, excused, disk_failed, over;

#define in_doubt (alive[A] && paused[A] && disk_lock != A && record_lock != A && operator == NONE)
#define end_of_stream(peer) (!wire || closed[peer])

inline send(channel, message)
{
	atomic {
		if
		:: wire -> channel!message
		:: else
		fi
	}
}

/* The one place where a guest begins to run. */
inline run_guest(who)
{
	atomic {
		assert(!running[1 - who]);
		assert(disk_lock == DISKS_OF(who));
#ifndef BREAK_CLAIM_WITHOUT_LOCK
		assert(!WITH_RECORD || (record_lock == who && record_owner == who && epoch > E));
#endif
		running[who] = true;
		if
		:: who == A ->
			/* B may have run and changed the world: only a person may go back behind that. */
			assert(!b_ran || operator == HERE);
			a_again = true
		:: else ->
			assert(!a_again);
			b_ran = true
		fi
	}
}

/* One pwrite. */
inline mark(who)
{
	d_step {
		epoch++;
		record_owner = who
	}
}

/* What the kernel does with a process that ended. */
proctype Reaper(byte who)
{
	do
	:: !closed[who] -> closed[who] = true
	:: record_lock == who -> record_lock = NOBODY
	:: disk_lock == who -> disk_lock = NOBODY
	:: closed[who] && record_lock != who && disk_lock != who -> break
	od
}

proctype Source()
{
	bool refused = false; /* the operator's word, since B holds the lock */

	{
		running[A] = false; /* all vCPUs have stopped; the window is open */
#ifdef BREAK_UNLOCK_BEFORE_VOTE
		record_lock = NOBODY;
#endif
		send(to_b, PREPARE);
		if
		:: to_a?VOTE_YES -> goto commit
		:: to_a?VOTE_NO
		:: end_of_stream(B)
		:: true /* deadline */
		fi;

		/* Before COMMIT the guest is A's, whatever B thinks. */
#ifndef BREAK_RESUME_WITHOUT_FENCE
		mark(A);
#endif
		send(to_b, ABORT);
#ifdef BREAK_RESUME_WITHOUT_FENCE
		running[A] = true; a_again = true; assert(!b_ran);
#else
		run_guest(A);
#endif
		goto end_settled;

commit:
		disk_lock = NOBODY;
		record_lock = NOBODY;
		send(to_b, COMMIT);
		if
		:: to_a?RUNNING -> moved = true; goto end_settled
		:: to_a?REFUSED ->
			if
			:: !WITH_RECORD -> goto take_back
			:: else
			fi
		:: end_of_stream(B)
		:: true /* deadline */
		fi;

doubt:
#ifdef BREAK_RESUME_IN_DOUBT
		goto take_back;
#endif
#ifdef RECORD
		do
		:: to_a?RUNNING -> moved = true; goto end_settled
		:: to_a?REFUSED
		:: atomic { record_lock == NOBODY -> record_lock = A };
#ifndef BREAK_RESUME_OVER_MARK
			if
			:: epoch == E -> goto take_back
			:: else -> /* B marked it and died */
				record_lock = NOBODY;
				break
			fi
#else
			goto take_back
#endif
		/* B decides. The deadline is longer than the kernel needs to bury a process. */
		:: record_lock == B && alive[B] -> break
		od;
#endif
		paused[A] = true;
end_in_doubt:
		do
		:: to_a?RUNNING -> paused[A] = false; moved = true; goto end_settled
		:: to_a?REFUSED ->
			if
			:: WITH_RECORD -> goto doubt
			:: else -> goto take_back
			fi
		:: operator == THERE -> paused[A] = false; moved = true; goto end_settled
		:: operator == HERE && !refused ->
			if
			:: !WITH_RECORD -> goto take_back
			:: WITH_RECORD ->
				if
				:: atomic { record_lock == NOBODY -> record_lock = A }; goto take_back
				:: record_lock != NOBODY && alive[record_lock] -> refused = true
				fi
			fi
		od;

take_back: /* with a record: under its lock, and marked before anything else can fail */
#ifndef BREAK_RESUME_IN_DOUBT
		mark(A);
#endif
		if
		:: atomic { disk_lock == NOBODY -> disk_lock = DISKS_OF(A) }
		:: atomic { disk_faults > 0 -> disk_faults--; disk_failed = true };
			paused[A] = true; /* `cont` tries the disk locks again */
			goto end_settled
		fi;
#ifdef BREAK_RESUME_IN_DOUBT
		running[A] = true; a_again = true; assert(!running[B] && !b_ran);
#else
		send(to_b, ABORT);
		paused[A] = false;
		run_guest(A);
#endif
end_settled:
		false
	} unless { !alive[A] }
}

proctype Destination()
{
	bool refused = false;

	{
		if
		:: to_b?PREPARE
		:: to_b?ABORT -> goto leave
		:: end_of_stream(A) -> goto leave
		:: true -> goto leave /* deadline */
		fi;
		if
		:: true -> send(to_a, VOTE_NO); goto leave
		:: true -> voted = true; send(to_a, VOTE_YES)
		fi;

wait:
		if
		:: to_b?COMMIT
		:: to_b?ABORT -> goto leave
#if defined(RECORD) || defined(BREAK_RUN_WITHOUT_COMMIT)
		:: end_of_stream(A)
		:: true /* deadline */
#else
		:: end_of_stream(A) -> goto leave
		:: true -> goto leave
#endif
		fi;

claim:
#if defined(RECORD) && !defined(BREAK_CLAIM_WITHOUT_LOCK)
		if
		:: atomic { record_lock == NOBODY -> record_lock = B }
		/* Tried until a deadline, since a source that died may not be buried yet. */
#ifdef BREAK_REFUSE_WHEN_BUSY
		:: record_lock == A -> goto leave
#else
		:: atomic { record_lock == A && alive[A] -> b_gave_up = true }; goto leave
#endif
		fi;
#ifndef BREAK_IGNORE_EPOCH
		if
		:: epoch != E -> goto leave
		:: else
		fi;
#endif
#endif
		if
		:: atomic { disk_lock == NOBODY -> disk_lock = DISKS_OF(B) }
#ifdef BREAK_REFUSE_WHEN_BUSY
		:: disk_lock == A -> goto disk_refused
#else
		:: disk_lock == A && alive[A] -> goto disk_refused
#endif
		:: atomic { disk_faults > 0 -> disk_faults--; disk_failed = true };
disk_refused:
			if
			:: refused -> /* nobody came to take the guest back: it is here, stopped */
				mark(B);
				paused[B] = true;
				goto end_settled
			:: else
			fi;
			refused = true;
			if
			:: record_lock == B -> record_lock = NOBODY
			:: else
			fi;
			send(to_a, REFUSED);
#ifdef BREAK_LEAVE_AFTER_REFUSED
			goto leave;
#endif
#ifdef RECORD
			do
			:: to_b?COMMIT
			:: to_b?ABORT -> goto leave
			:: end_of_stream(A) -> goto claim
			:: true -> goto claim /* deadline */
			od
#else
			goto leave
#endif
		fi;
#ifdef BREAK_RUN_BEFORE_MARK
		running[B] = true; b_ran = true; assert(!running[A] && !a_again);
		mark(B);
#else
		mark(B);
		run_guest(B);
#endif
		send(to_a, RUNNING);
end_settled:
		false;
leave:
		atomic { run Reaper(B); alive[B] = false }
	} unless { !alive[B] }
}

/* SIGKILL. What is killed is lost with the guest in it; excused says that the guest was that process's
 * own at that moment, with nobody else who could go on with it. */
inline kill(who)
{
	if
	:: who == A && WITH_RECORD ->
		if
		:: moved
		:: !moved && epoch != E -> excused = excused || record_owner == A
		:: !moved && epoch == E && voted && !b_gave_up -> orphaned = true
		:: else -> excused = true
		fi
	:: who == A && !WITH_RECORD -> excused = excused || !b_ran
	:: who == B -> excused = excused || b_ran || (WITH_RECORD && record_owner == B)
	fi;
	killed[who] = true;
	alive[who] = false;
	running[who] = false;
	paused[who] = false;
	run Reaper(who)
}

/* All that can go wrong, each once and at any moment, or not; and the person at the console of A, who
 * may speak when A says that it is in doubt. Without a record this person must fence B (see that it
 * runs, or kill it) before giving the guest back to A. */
proctype World()
{
	do
	:: atomic { alive[A] && !killed[A] -> kill(A) }
	:: atomic { alive[B] && !killed[B] -> kill(B) }
	:: wire -> wire = false
	:: atomic { in_doubt && running[B] -> operator = THERE }
#ifdef RECORD
	:: atomic { in_doubt -> operator = HERE }
#else
	:: atomic {
		in_doubt && !running[B] ->
#ifndef BREAK_OPERATOR_DOES_NOT_FENCE
		if
		:: alive[B] -> kill(B)
		:: else
		fi;
		closed[B]; /* waits until it is gone */
		disk_lock != B;
#endif
		operator = HERE
	   }
#endif
	:: break
	od
}

#define lost (!running[A] && !running[B] && !(alive[A] && paused[A]) && !(alive[B] && paused[B]))

init
{
	atomic {
		running[A] = true;
		run Source();
		run Destination();
		run World()
	};
	timeout; /* nobody can do anything any more: the end of this execution */
	over = true;

	/* One, at most, runs. */
	assert(!(running[A] && running[B]));
	/* A guest is lost only with the process whose own it was, or with both. */
	assert(!lost || excused || (killed[A] && killed[B]));
#ifdef RECORD
	/* Cut wires and missed deadlines alone never stop it for good. */
	assert(killed[A] || killed[B] || disk_failed || running[A] || running[B]);
	/* The destination killed before it marked the record: the source runs, or says it is in doubt
	 * because the lock was held up to its deadline. */
	assert(!(killed[B] && !killed[A] && !excused) || running[A] || paused[A]);
	/* A source killed after the vote: the destination takes over. */
	assert(!(orphaned && !killed[B] && !disk_failed) || running[B]);
#endif
}
