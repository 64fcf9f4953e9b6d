/* SPDX-License-Identifier: Apache-2.0 */
/* How a channel comes to be: the URI is parsed, then connected to or listened on. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "migration/channel.h"
#include "migration/migration.h"

/* A few packets may be under way, so that neither side waits for the other's every step; few enough
 * to stay in the cache between the two. */
#define SOCKET_BUFFER (1 << 20)
/* TCP gives up on a silent link after so long. */
#define TCP_TIMEOUT_MS 10000

extern char **environ;

enum uri_kind { URI_UNIX, URI_TCP, URI_FD, URI_EXEC };

struct uri {
	enum uri_kind kind;
	const char *rest; /* path, name or command */
	char host[256], port[16];
};

static int parse_tcp(struct uri *uri, struct error **err)
{
	const char *text = uri->rest, *colon = strrchr(text, ':'), *host_end = colon;

	if (!colon || !colon[1])
		return error_set(err, -EINVAL, "tcp:%s has no port; write tcp:HOST:PORT", text);
	if (*text == '[') {
		host_end = strchr(text, ']');
		if (!host_end || host_end + 1 != colon)
			return error_set(err, -EINVAL, "tcp:%s: write tcp:[ADDRESS]:PORT", text);
		text++;
	}
	/* getaddrinfo() takes 99999 and uses its low 16 bits. */
	if (strspn(colon + 1, "0123456789") == strlen(colon + 1) &&
	    strtoul(colon + 1, NULL, 10) > 65535)
		return error_set(err, -EINVAL, "tcp:%s: a port is at most 65535", uri->rest);
	if ((size_t)(host_end - text) >= sizeof(uri->host) ||
	    strlen(colon + 1) >= sizeof(uri->port))
		return error_set(err, -EINVAL, "the host or port in tcp:%s is too long", uri->rest);
	memcpy(uri->host, text, (size_t)(host_end - text));
	strcpy(uri->port, colon + 1);
	return 0;
}

static int uri_parse(struct uri *uri, const char *text, struct error **err)
{
	static const struct {
		const char *prefix;
		enum uri_kind kind;
	} kinds[] = {{"unix:", URI_UNIX}, {"tcp:", URI_TCP}, {"fd:", URI_FD}, {"exec:", URI_EXEC}};

	memset(uri, 0, sizeof(*uri));
	for (size_t i = 0; i < sizeof(kinds) / sizeof(*kinds); i++) {
		size_t length = strlen(kinds[i].prefix);

		if (strncmp(text, kinds[i].prefix, length) != 0)
			continue;
		uri->kind = kinds[i].kind;
		uri->rest = text + length;
		if (!*uri->rest)
			return error_set(err, -EINVAL, "nothing follows '%s' in the migration URI",
					 kinds[i].prefix);
		if (uri->kind == URI_TCP)
			return parse_tcp(uri, err);
		if (uri->kind == URI_UNIX &&
		    strlen(uri->rest) >= sizeof(((struct sockaddr_un *)0)->sun_path))
			return error_set(err, -ENAMETOOLONG,
					 "the socket path %s has %zu bytes; the kernel takes at "
					 "most 107",
					 uri->rest, strlen(uri->rest));
		return 0;
	}
	return error_set(err, -EINVAL,
			 "migration URI '%s' is none of unix:PATH, tcp:HOST:PORT, fd:NAME, "
			 "exec:COMMAND",
			 text);
}

static bool is_loopback(const struct sockaddr *address)
{
	if (address->sa_family == AF_INET)
		return (ntohl(((const struct sockaddr_in *)address)->sin_addr.s_addr) >> 24) == 127;
	if (address->sa_family == AF_INET6)
		return IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)address)->sin6_addr);
	return false;
}

static int resolve(const struct uri *uri, int flags, bool insecure, struct addrinfo **list,
		   struct error **err)
{
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = flags};
	int status = getaddrinfo(*uri->host ? uri->host : NULL, uri->port, &hints, list);

	if (status)
		return error_set(err, -EINVAL, "cannot resolve tcp:%s: %s", uri->rest,
				 gai_strerror(status));
	for (struct addrinfo *a = *list; a; a = a->ai_next) {
		if (insecure || is_loopback(a->ai_addr))
			continue;
		freeaddrinfo(*list);
		*list = NULL;
		return error_set(err, -EPERM,
				 "tcp:%s is not a loopback address, and the guest's memory would "
				 "cross the network unencrypted; if that network is private, allow "
				 "it with --insecure (in QMP: \"insecure\": true)",
				 uri->rest);
	}
	return 0;
}

/* An address in numbers is judged at once; a name needs the resolver, which may be slow. */
static int check_address(const struct uri *uri, bool insecure, struct error **err)
{
	struct addrinfo *list = NULL;
	struct error *found = NULL;
	int status = resolve(uri, AI_NUMERICHOST, insecure, &list, &found);

	if (list)
		freeaddrinfo(list);
	if (status == -EPERM)
		error_set(err, status, "%s", error_text(found));
	error_free(&found);
	return status == -EPERM ? status : 0;
}

static int check_permissions(const struct uri *uri, const struct migration_request *request,
			     struct error **err)
{
	if (uri->kind == URI_EXEC && !request->allow_exec)
		return error_set(err, -EPERM,
				 "exec: runs a command of the control client's choice; start "
				 "godwit run with --allow-exec to permit it");
	if (uri->kind == URI_FD && request->fd < 0)
		return error_set(err, -EINVAL,
				 "no descriptor named '%s' was handed over; send it with getfd "
				 "first",
				 uri->rest);
	return uri->kind == URI_TCP ? check_address(uri, request->insecure, err) : 0;
}

int channel_check_uri(const struct migration_request *request, bool listening, struct error **err)
{
	struct uri uri;
	int status = uri_parse(&uri, request->uri, err);

	if (status == 0)
		status = check_permissions(&uri, request, err);
	return status;
}

static void tune(int fd)
{
	int size = SOCKET_BUFFER, one = 1, timeout = TCP_TIMEOUT_MS;

	fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
	fcntl(fd, F_SETFD, FD_CLOEXEC);
	if (setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &size, sizeof(size)) < 0)
		setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof(size));
	/* These fail harmlessly on a socket that is not TCP. */
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout, sizeof(timeout));
	setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof(one));
}

static void channel_adopt(struct channel *channel, int fd, pid_t child, int cancel_fd)
{
	*channel = (struct channel){.fd = fd, .cancel_fd = cancel_fd, .child = child};
	tune(fd);
}

static int check_socket(int fd, const char *name, struct error **err)
{
	struct sockaddr_storage peer;
	socklen_t length = sizeof(int), peer_length = sizeof(peer);
	int type;

	if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &length) < 0 || type != SOCK_STREAM ||
	    getpeername(fd, (struct sockaddr *)&peer, &peer_length) < 0)
		return error_set(err, -EINVAL,
				 "descriptor '%s' is no connected stream socket; a migration needs "
				 "both directions (a pipe has one)",
				 name);
	return 0;
}

static int spawn_command(const char *command, int *fd, pid_t *child, struct error **err)
{
	posix_spawn_file_actions_t actions;
	posix_spawnattr_t attributes;
	sigset_t all, none;
	char *argv[] = {"sh", "-c", (char *)(uintptr_t)command, NULL};
	int pair[2], status;

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
		return error_set_errno(err, -errno, "cannot create a socket pair");
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_adddup2(&actions, pair[1], 0);
	posix_spawn_file_actions_adddup2(&actions, pair[1], 1);
	posix_spawnattr_init(&attributes);
	sigfillset(&all);
	sigemptyset(&none);
	/* Signals as a command expects them (this process ignores SIGPIPE), and a group of its own:
	 * what the shell starts is ended with it. */
	posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK |
						      POSIX_SPAWN_SETPGROUP);
	posix_spawnattr_setsigdefault(&attributes, &all);
	posix_spawnattr_setsigmask(&attributes, &none);
	posix_spawnattr_setpgroup(&attributes, 0);
	status = posix_spawn(child, "/bin/sh", &actions, &attributes, argv, environ);
	posix_spawnattr_destroy(&attributes);
	posix_spawn_file_actions_destroy(&actions);
	close(pair[1]);
	if (status) {
		close(pair[0]);
		return error_set_errno(err, -status, "cannot start '%s'", command);
	}
	*fd = pair[0];
	return 0;
}

/* Connects within the deadline; a cancel ends it too. */
static int connect_address(const struct sockaddr *address, socklen_t length, int cancel_fd,
			   uint64_t deadline_us)
{
	cleanup_close int fd =
		socket(address->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	int error = 0;
	socklen_t error_length = sizeof(error);

	if (fd < 0)
		return -errno;
	while (connect(fd, address, length) < 0 && errno != EINPROGRESS) {
		struct pollfd pause = {.fd = cancel_fd, .events = POLLIN};

		/* A unix socket with a full backlog says EAGAIN, and there is nothing to poll. */
		if (errno != EAGAIN && errno != EINTR)
			return -errno;
		if (clock_us() >= deadline_us)
			return -ETIMEDOUT;
		if (poll(&pause, 1, 5) > 0)
			return -ECANCELED;
	}
	for (;;) {
		struct pollfd fds[2] = {{.fd = fd, .events = POLLOUT},
					{.fd = cancel_fd, .events = POLLIN}};
		uint64_t now = clock_us();

		if (now >= deadline_us)
			return -ETIMEDOUT;
		if (poll(fds, 2, (int)((deadline_us - now) / 1000 + 1)) < 0 && errno != EINTR)
			return -errno;
		if (fds[1].revents)
			return -ECANCELED;
		if (fds[0].revents)
			break;
	}
	if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &error_length) < 0)
		return -errno;
	return error ? -error : steal_fd(&fd);
}

static int unix_address(const struct uri *uri, struct sockaddr_un *address)
{
	*address = (struct sockaddr_un){.sun_family = AF_UNIX};
	strcpy(address->sun_path, uri->rest);
	return (int)sizeof(*address);
}

int channel_connect(struct channel *channel, const struct migration_request *request, int cancel_fd,
		    uint64_t deadline_us, struct error **err)
{
	struct uri uri;
	struct addrinfo *list = NULL;
	struct sockaddr_un address;
	pid_t child = 0;
	int status, fd = -1;

	status = uri_parse(&uri, request->uri, err);
	if (status == 0)
		status = check_permissions(&uri, request, err);
	if (status < 0)
		return status;
	switch (uri.kind) {
	case URI_FD:
		status = check_socket(request->fd, uri.rest, err);
		fd = request->fd;
		break;
	case URI_EXEC:
		status = spawn_command(uri.rest, &fd, &child, err);
		break;
	case URI_UNIX:
		unix_address(&uri, &address);
		fd = connect_address((struct sockaddr *)&address, sizeof(address), cancel_fd,
				     deadline_us);
		break;
	case URI_TCP:
		status = resolve(&uri, 0, request->insecure, &list, err);
		for (struct addrinfo *a = list; a && fd < 0; a = a->ai_next)
			fd = connect_address(a->ai_addr, a->ai_addrlen, cancel_fd, deadline_us);
		if (list)
			freeaddrinfo(list);
		break;
	}
	if (status < 0)
		return status;
	if (fd < 0)
		return error_set_errno(err, fd, "cannot connect to %s", request->uri);
	channel_adopt(channel, fd, child, cancel_fd);
	return 0;
}

static void reap(pid_t child)
{
	static const int signals[] = {0, SIGTERM, SIGKILL};

	for (size_t i = 0; i < sizeof(signals) / sizeof(*signals); i++) {
		if (signals[i])
			kill(-child, signals[i]);
		for (int waited = 0; waited < 100; waited++) {
			if (waitpid(child, NULL, WNOHANG) != 0)
				return;
			poll(NULL, 0, 10);
		}
	}
	log_warning("the exec: command (process %d) does not end", (int)child);
}

void channel_close(struct channel *channel)
{
	if (channel->fd >= 0)
		close(channel->fd);
	channel->fd = -1;
	if (channel->child > 0)
		reap(channel->child);
	channel->child = 0;
}

/* Says whether somebody listens on the path; a stale file may be replaced. */
static bool unix_is_live(const struct sockaddr_un *address)
{
	cleanup_close int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

	return fd >= 0 && (connect(fd, (const struct sockaddr *)address, sizeof(*address)) == 0 ||
			   errno == EAGAIN);
}

static int listen_unix(struct listener *listener, const struct uri *uri, struct error **err)
{
	struct sockaddr_un address;
	struct stat info;
	cleanup_close int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

	if (fd < 0)
		return error_set_errno(err, -errno, "cannot create a socket");
	unix_address(uri, &address);
	if (lstat(uri->rest, &info) == 0) {
		if (!S_ISSOCK(info.st_mode))
			return error_set(err, -EEXIST, "%s exists and is no socket", uri->rest);
		if (unix_is_live(&address))
			return error_set(err, -EADDRINUSE, "another process listens on %s",
					 uri->rest);
		unlink(uri->rest);
	}
	if (bind(fd, (struct sockaddr *)&address, sizeof(address)) < 0 || listen(fd, 4) < 0)
		return error_set_errno(err, -errno, "cannot listen on %s", uri->rest);
	chmod(uri->rest, 0600);
	strcpy(listener->path, uri->rest);
	snprintf(listener->address, sizeof(listener->address), "unix:%s", uri->rest);
	listener->fd = steal_fd(&fd);
	return 0;
}

static int listen_tcp(struct listener *listener, const struct uri *uri, bool insecure,
		      struct error **err)
{
	struct addrinfo *list;
	struct sockaddr_storage bound;
	socklen_t length = sizeof(bound);
	char port[16];
	cleanup_close int fd = -1;
	int one = 1, status = resolve(uri, AI_PASSIVE, insecure, &list, err);

	if (status < 0)
		return status;
	fd = socket(list->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	status = fd < 0 ? -errno : 0;
	if (!status) {
		setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
		if (bind(fd, list->ai_addr, list->ai_addrlen) < 0 || listen(fd, 4) < 0 ||
		    getsockname(fd, (struct sockaddr *)&bound, &length) < 0)
			status = -errno;
	}
	freeaddrinfo(list);
	if (status < 0)
		return error_set_errno(err, status, "cannot listen on tcp:%s", uri->rest);
	getnameinfo((struct sockaddr *)&bound, length, NULL, 0, port, sizeof(port), NI_NUMERICSERV);
	snprintf(listener->address, sizeof(listener->address),
		 strchr(uri->host, ':') ? "tcp:[%.100s]:%.8s" : "tcp:%.100s:%.8s", uri->host, port);
	listener->fd = steal_fd(&fd);
	return 0;
}

int listener_open(struct listener *listener, const struct migration_request *request,
		  struct error **err)
{
	struct uri uri;
	int status;

	*listener = (struct listener){.fd = -1, .given_fd = -1};
	status = uri_parse(&uri, request->uri, err);
	if (status == 0)
		status = check_permissions(&uri, request, err);
	if (status < 0)
		return status;
	snprintf(listener->address, sizeof(listener->address), "%s", request->uri);
	switch (uri.kind) {
	case URI_UNIX:
		return listen_unix(listener, &uri, err);
	case URI_TCP:
		return listen_tcp(listener, &uri, request->insecure, err);
	case URI_FD:
		status = check_socket(request->fd, uri.rest, err);
		if (status == 0)
			listener->given_fd = request->fd;
		return status;
	case URI_EXEC:
		listener->command = strdup(uri.rest);
		return listener->command ? 0 : error_set(err, -ENOMEM, "out of memory");
	}
	return -EINVAL;
}

int listener_accept(struct listener *listener, struct channel *channel, int cancel_fd,
		    struct error **err)
{
	int fd = -1, status = 0;
	pid_t child = 0;

	if (listener->command) {
		status = spawn_command(listener->command, &fd, &child, err);
		free(steal_pointer(&listener->command));
		if (status < 0)
			return status;
	} else if (listener->given_fd >= 0) {
		fd = steal_fd(&listener->given_fd);
	} else if (listener->fd < 0) {
		return error_set(err, -EPIPE, "the one connection of this channel has ended");
	}
	while (fd < 0) {
		struct pollfd fds[2] = {{.fd = listener->fd, .events = POLLIN},
					{.fd = cancel_fd, .events = POLLIN}};

		if (poll(fds, 2, -1) < 0 && errno != EINTR)
			return error_set_errno(err, -errno, "cannot wait for a connection");
		if (fds[1].revents)
			return error_set(err, -ECANCELED, "cancelled");
		fd = accept4(listener->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
		if (fd < 0 && errno != EAGAIN && errno != EINTR && errno != ECONNABORTED)
			return error_set_errno(err, -errno, "cannot accept a connection");
	}
	channel_adopt(channel, fd, child, cancel_fd);
	return 0;
}

void listener_close(struct listener *listener)
{
	if (listener->fd >= 0)
		close(listener->fd);
	if (listener->given_fd >= 0)
		close(listener->given_fd);
	if (*listener->path)
		unlink(listener->path);
	free(listener->command);
	*listener = (struct listener){.fd = -1, .given_fd = -1};
}
