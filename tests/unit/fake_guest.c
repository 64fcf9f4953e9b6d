/* SPDX-License-Identifier: Apache-2.0 */
#include "fake_guest.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/bitmap.h"
#include "base/clock.h"
#include "memory/pagemap.h"

/* Not an assertion of cmocka: this runs on any thread, and in the fuzzer. */
static void require(bool condition, const char *what)
{
	if (condition)
		return;
	fprintf(stderr, "fake guest: %s\n", what);
	abort();
}

static const struct state_field vcpu_fields[] = {
	STATE_FIELD(struct fake_vcpu, mode, STATE_U8, "mode"),
	STATE_FIELD(struct fake_vcpu, selector, STATE_U16, "selector"),
	STATE_FIELD(struct fake_vcpu, flags, STATE_U32, "flags"),
	STATE_FIELD(struct fake_vcpu, pc, STATE_U64, "pc"),
	STATE_FIELD(struct fake_vcpu, early_only, STATE_U64, "early-only"),
	STATE_FIELD(struct fake_vcpu, registers, STATE_BYTES, "registers"),
};

static const struct state_field clock_fields[] = {
	STATE_FIELD(struct fake_clock, ticks, STATE_U64, "ticks"),
};

/* Counts the call; -EIO when it is the one that is to fail. */
static int called(struct fake_guest *guest, enum fake_operation operation)
{
	unsigned int n = atomic_fetch_add(&guest->counts[operation], 1) + 1;

	if (guest->delay_us[operation])
		usleep(guest->delay_us[operation]);
	return guest->fail[operation] && n >= guest->fail[operation] &&
			       n <= guest->fail[operation] + guest->fail_more[operation]
		       ? -EIO
		       : 0;
}

static void note_running(struct fake_guest *guest, bool running)
{
	int self = guest->destination;

	if (!guest->board)
		return;
	atomic_store(&guest->board->running[self], running);
	if (running && atomic_load(&guest->board->running[!self]) &&
	    !atomic_load(&guest->board->dead[!self]))
		atomic_fetch_add(&guest->board->violations, 1);
}

/* The order is KVM's: whoever clears the log and then reads the page sees the write or finds it in
 * the log afterwards. */
static void write_page(struct fake_guest *guest, uint64_t page, uint64_t value)
{
	for (unsigned int i = 0; i < guest->ram->count; i++) {
		struct ram_region *region = &guest->ram->regions[i];
		uint64_t pages = ram_region_pages(region);

		if (page >= pages) {
			page -= pages;
			continue;
		}
		for (unsigned int at = 0; at < RAM_PAGE_SIZE; at += 512)
			*(volatile uint64_t *)(region->hva + page * RAM_PAGE_SIZE + at) = value;
		if (atomic_load(&guest->logging))
			atomic_fetch_or(&guest->dirty[i][page / 64], UINT64_C(1) << page % 64);
		return;
	}
}

static void *guest_thread(void *opaque)
{
	struct fake_guest *guest = opaque;
	uint64_t x = 88172645463325252u;

	pthread_mutex_lock(&guest->lock);
	while (!guest->quit) {
		if (!guest->run_wanted) {
			guest->is_running = false;
			pthread_cond_broadcast(&guest->changed);
			pthread_cond_wait(&guest->changed, &guest->lock);
			continue;
		}
		guest->is_running = true;
		pthread_cond_broadcast(&guest->changed);
		if (!guest->config.hot_pages) {
			pthread_cond_wait(&guest->changed, &guest->lock);
			continue;
		}
		pthread_mutex_unlock(&guest->lock);
		for (int i = 0; i < 16; i++) {
			x ^= x << 13;
			x ^= x >> 7;
			x ^= x << 17;
			/* Now and then a page becomes zero again. */
			write_page(guest, x % guest->config.hot_pages, x >> 32 & 15 ? x : 0);
			atomic_fetch_add(&guest->writes, 1);
		}
		if (guest->config.pace_us)
			usleep(guest->config.pace_us * 16);
		pthread_mutex_lock(&guest->lock);
	}
	pthread_mutex_unlock(&guest->lock);
	return NULL;
}

void fake_set_running(struct fake_guest *guest, bool running)
{
	if (running)
		note_running(guest, true);
	pthread_mutex_lock(&guest->lock);
	guest->run_wanted = running;
	pthread_cond_broadcast(&guest->changed);
	while (guest->is_running != running)
		pthread_cond_wait(&guest->changed, &guest->lock);
	pthread_mutex_unlock(&guest->lock);
	if (!running)
		note_running(guest, false);
}

bool fake_is_running(struct fake_guest *guest)
{
	bool running;

	pthread_mutex_lock(&guest->lock);
	running = guest->is_running;
	pthread_mutex_unlock(&guest->lock);
	return running;
}

void fake_fill(struct fake_guest *guest, uint64_t first, uint64_t count, uint64_t seed)
{
	for (uint64_t page = first; page < first + count; page++)
		write_page(guest, page, seed + page * UINT64_C(0x9e3779b97f4a7c15));
}

void fake_device_write(struct fake_guest *guest, uint64_t gpa, uint64_t value)
{
	require(ram_write(guest->ram, gpa, &value, sizeof(value)) == 0, "device write");
}

static int make_ram(struct fake_guest *guest, struct error **err)
{
	int status = ram_create(&guest->ram, guest->config.size, guest->config.backing, err);

	for (unsigned int i = 0; status == 0 && i < guest->ram->count; i++) {
		guest->dirty[i] = calloc(BITMAP_WORDS(ram_region_pages(&guest->ram->regions[i])),
					 sizeof(uint64_t));
		require(guest->dirty[i], "out of memory");
	}
	return status;
}

void fake_create(struct fake_guest *guest, const struct fake_config *config, bool destination)
{
	memset(guest, 0, sizeof(*guest));
	guest->config = *config;
	guest->destination = destination;
	guest->owner.fd = -1;
	guest->model = "fake";
	if (!guest->config.vcpus)
		guest->config.vcpus = 1;
	guest->vcpus = calloc(guest->config.vcpus, sizeof(*guest->vcpus));
	guest->object_count = guest->config.vcpus + 1;
	guest->objects = calloc(guest->object_count, sizeof(*guest->objects));
	require(guest->vcpus && guest->objects, "out of memory");
	for (unsigned int i = 0; i < guest->config.vcpus; i++)
		guest->objects[i] = (struct state_object){
			"vcpu", i, vcpu_fields, sizeof(vcpu_fields) / sizeof(*vcpu_fields),
			&guest->vcpus[i]};
	guest->objects[guest->config.vcpus] =
		(struct state_object){"clock", 0, clock_fields, 1, &guest->clock};
	pthread_mutex_init(&guest->lock, NULL);
	pthread_cond_init(&guest->changed, NULL);
	require(pthread_create(&guest->thread, NULL, guest_thread, guest) == 0, "no thread");
	if (!destination)
		require(make_ram(guest, NULL) == 0, "no memory");
}

void fake_destroy(struct fake_guest *guest)
{
	migration_destroy(guest->migration);
	pthread_mutex_lock(&guest->lock);
	guest->quit = true;
	pthread_cond_broadcast(&guest->changed);
	pthread_mutex_unlock(&guest->lock);
	pthread_join(guest->thread, NULL);
	owner_close(&guest->owner);
	for (unsigned int i = 0; i < RAM_MAX_REGIONS; i++)
		free(guest->dirty[i]);
	if (guest->ram)
		ram_destroy(guest->ram);
	free(guest->objects);
	free(guest->vcpus);
	free(guest->copy);
	pthread_mutex_destroy(&guest->lock);
	pthread_cond_destroy(&guest->changed);
}

/* The values at the stop (early: false) differ from the early ones, except for one. */
static void save(struct fake_guest *guest, bool early)
{
	uint64_t writes = atomic_load(&guest->writes);

	for (unsigned int i = 0; i < guest->config.vcpus; i++) {
		struct fake_vcpu *vcpu = &guest->vcpus[i];

		vcpu->mode = early ? 1 : 2;
		vcpu->selector = (uint16_t)(early ? 3 : 0x1000 + i);
		vcpu->flags = early ? 0xffffffff : 0x202 + i;
		vcpu->pc = early ? 5 : UINT64_C(0xffffffff81000000) + i;
		vcpu->early_only = UINT64_C(0x1122334455667788) + i;
		memset(vcpu->registers, early ? 0xee : (int)(i + 7), sizeof(vcpu->registers));
		vcpu->registers[199] = (uint8_t)i;
	}
	guest->clock.ticks = writes + 1;
}

static void keep_copy(struct fake_guest *guest)
{
	uint8_t *copy;

	if (!guest->keep_copy)
		return;
	free(guest->copy);
	copy = guest->copy = malloc(guest->ram->size);
	require(copy, "out of memory");
	guest->copy_touched = 0;
	for (unsigned int i = 0; i < guest->ram->count; i++) {
		struct ram_region *region = &guest->ram->regions[i];
		uint64_t pages = ram_region_pages(region);
		uint64_t *map = calloc(BITMAP_WORDS(pages), sizeof(*map));

		require(map && pagemap_scan(region, map, NULL) == 0, "page map");
		guest->copy_touched += bitmap_count(map, pages);
		free(map);
		memcpy(copy, region->hva, region->size);
		copy += region->size;
	}
}

static int op_describe(void *opaque, struct description *d, struct error **err)
{
	struct fake_guest *guest = opaque;

	if (called(guest, FAKE_DESCRIBE) < 0)
		return error_set(err, -EIO, "describe was told to fail");
	require(description_add(d, true, "machine.model", "%s", guest->model) == 0 &&
			description_add(d, true, "memory.size", "%llu",
					(unsigned long long)guest->config.size) == 0,
		"description");
	return 0;
}

static int op_build(void *opaque, const struct description *d, bool check_only, struct error **err)
{
	struct fake_guest *guest = opaque;
	const char *model = description_get(d, "machine.model");
	uint64_t size;

	if (called(guest, FAKE_BUILD) < 0)
		return error_set(err, -EIO, "build was told to fail");
	for (unsigned int i = 0; i < d->count; i++)
		if (d->entries[i].required && strcmp(d->entries[i].key, "machine.model") != 0 &&
		    strcmp(d->entries[i].key, "memory.size") != 0)
			return error_set(err, -EINVAL, "%s: unknown to this machine",
					 d->entries[i].key);
	if (!model || strcmp(model, guest->model) != 0)
		return error_set(err, -EINVAL, "machine.model: the source is a %s, this is a %s",
				 model ? model : "nothing", guest->model);
	if (description_get_number(d, "memory.size", &size) < 0 || size != guest->config.size)
		return error_set(err, -EINVAL, "memory.size: not that of the source");
	if (check_only)
		return 0;
	require(!guest->ram, "built twice");
	return make_ram(guest, err);
}

static struct ram *op_ram(void *opaque)
{
	return ((struct fake_guest *)opaque)->ram;
}

static const struct state_object *op_state(void *opaque, unsigned int *count)
{
	struct fake_guest *guest = opaque;

	*count = guest->object_count;
	return guest->objects;
}

static int op_log_start(void *opaque, struct error **err)
{
	struct fake_guest *guest = opaque;

	if (called(guest, FAKE_LOG_START) < 0)
		return error_set(err, -EIO, "log_start was told to fail");
	for (unsigned int i = 0; i < guest->ram->count; i++) {
		uint64_t pages = ram_region_pages(&guest->ram->regions[i]);
		bool full = guest->config.log == FAKE_LOG_INITIALLY_SET;

		for (uint64_t w = 0; w < BITMAP_WORDS(pages); w++)
			atomic_store(&guest->dirty[i][w], full ? UINT64_MAX : 0);
		if (full && pages % 64)
			atomic_store(&guest->dirty[i][pages / 64], (UINT64_C(1) << pages % 64) - 1);
		for (uint64_t w = 0; w < BITMAP_WORDS(pages); w++)
			atomic_store(&guest->ram->regions[i].written[w], 0);
	}
	atomic_store(&guest->ram->logging, true);
	atomic_store(&guest->logging, true);
	return 0;
}

static void op_log_stop(void *opaque)
{
	struct fake_guest *guest = opaque;

	called(guest, FAKE_LOG_STOP);
	require(!guest->in_window, "the log was switched off in the window");
	atomic_store(&guest->logging, false);
	atomic_store(&guest->ram->logging, false);
}

static bool op_log_initially_set(void *opaque)
{
	return ((struct fake_guest *)opaque)->config.log == FAKE_LOG_INITIALLY_SET;
}

static void harvest_region(struct fake_guest *guest, unsigned int index, struct page_map *map)
{
	struct ram_region *region = &guest->ram->regions[index];

	for (uint64_t w = 0; w < BITMAP_WORDS(ram_region_pages(region)); w++) {
		uint64_t bits = guest->config.log == FAKE_LOG_HARVEST_CLEARS
					? atomic_exchange(&guest->dirty[index][w], 0)
					: atomic_load(&guest->dirty[index][w]);

		bits |= atomic_exchange(&region->written[w], 0);
		page_map_merge(map, w * 64, &bits, 64);
	}
}

static int op_log_harvest(void *opaque, struct page_map *maps)
{
	struct fake_guest *guest = opaque;

	if (called(guest, FAKE_LOG_HARVEST) < 0)
		return -EIO;
	for (unsigned int i = 0; i < guest->ram->count; i++)
		harvest_region(guest, i, &maps[i]);
	return 0;
}

static int op_log_clear(void *opaque, unsigned int index, uint64_t first, uint64_t count,
			const uint64_t *seen)
{
	struct fake_guest *guest = opaque;
	uint64_t pages = ram_region_pages(&guest->ram->regions[index]);

	require(first % 64 == 0 && first < pages && count && count <= pages - first &&
			(count % 64 == 0 || first + count == pages),
		"log_clear() of an impossible range");
	require(!guest->in_window, "the log was cleared in the window");
	if (called(guest, FAKE_LOG_CLEAR) < 0)
		return -EIO;
	if (guest->config.log == FAKE_LOG_HARVEST_CLEARS)
		return 0;
	for (uint64_t w = first / 64; w < BITMAP_WORDS(first + count); w++)
		atomic_fetch_and(&guest->dirty[index][w], ~seen[w]);
	return 0;
}

static int op_save_early(void *opaque, struct error **err)
{
	if (called(opaque, FAKE_SAVE_EARLY) < 0)
		return error_set(err, -EIO, "save_early was told to fail");
	save(opaque, true);
	return 0;
}

static int op_stop(void *opaque, uint64_t deadline_us, bool *was_running, uint64_t *stopped_us,
		   struct error **err)
{
	struct fake_guest *guest = opaque;

	if (called(guest, FAKE_STOP) < 0)
		return error_set(err, -EIO, "stop was told to fail");
	*was_running = guest->was_running = fake_is_running(guest);
	fake_set_running(guest, false);
	if (guest->config.write_at_stop)
		write_page(guest, 1, clock_us());
	*stopped_us = clock_us();
	guest->in_window = true;
	save(guest, false);
	keep_copy(guest);
	return 0;
}

static void op_resume(void *opaque)
{
	struct fake_guest *guest = opaque;

	called(guest, FAKE_RESUME);
	guest->in_window = false;
	fake_set_running(guest, guest->was_running);
}

static void op_moved(void *opaque)
{
	((struct fake_guest *)opaque)->in_window = false;
	called(opaque, FAKE_MOVED);
}

static void op_in_doubt(void *opaque)
{
	((struct fake_guest *)opaque)->in_window = false;
	called(opaque, FAKE_IN_DOUBT);
}

static int op_load(void *opaque, struct error **err)
{
	return called(opaque, FAKE_LOAD) < 0 ? error_set(err, -EIO, "load was told to fail") : 0;
}

static void op_run(void *opaque, bool running, uint64_t *running_us)
{
	struct fake_guest *guest = opaque;

	called(guest, FAKE_RUN);
	keep_copy(guest);
	fake_set_running(guest, running);
	*running_us = clock_us();
}

static void op_arrived(void *opaque)
{
	called(opaque, FAKE_ARRIVED);
}

static struct owner_record *op_owner(void *opaque)
{
	return &((struct fake_guest *)opaque)->owner;
}

static void op_locks_release(void *opaque)
{
	called(opaque, FAKE_LOCKS_RELEASE);
}

static int op_locks_acquire(void *opaque, struct error **err)
{
	return called(opaque, FAKE_LOCKS_ACQUIRE) < 0
		       ? error_set(err, -EIO, "locks_acquire was told to fail")
		       : 0;
}

const struct migration_ops fake_ops = {
	.describe = op_describe,
	.build = op_build,
	.ram = op_ram,
	.state = op_state,
	.log_start = op_log_start,
	.log_stop = op_log_stop,
	.log_initially_set = op_log_initially_set,
	.log_harvest = op_log_harvest,
	.log_clear = op_log_clear,
	.save_early = op_save_early,
	.stop = op_stop,
	.resume = op_resume,
	.moved = op_moved,
	.in_doubt = op_in_doubt,
	.load = op_load,
	.run = op_run,
	.arrived = op_arrived,
	.owner = op_owner,
	.locks_release = op_locks_release,
	.locks_acquire = op_locks_acquire,
};

static void status_changed(void *opaque, enum migration_status status)
{
	struct fake_guest *guest = opaque;
	unsigned int n = atomic_load(&guest->seen_count);

	if (n < sizeof(guest->seen) / sizeof(*guest->seen))
		guest->seen[n] = status;
	atomic_store(&guest->seen_count, n + 1);
	pthread_mutex_lock(&guest->lock);
	pthread_cond_broadcast(&guest->changed);
	pthread_mutex_unlock(&guest->lock);
}

void fake_create_engine(struct fake_guest *guest)
{
	static const struct migration_callbacks callbacks = {.status_changed = status_changed};

	require(migration_create(&guest->migration, &fake_ops, guest, &callbacks, guest, NULL) == 0,
		"no engine");
}

static bool final(const struct migration_info *info)
{
	return info->status == MIGRATION_COMPLETED || info->status == MIGRATION_FAILED ||
	       info->status == MIGRATION_CANCELLED || info->in_doubt;
}

/* Woken by status_changed(), and now and then by itself for what has no status of its own. */
static void wait_changed(struct fake_guest *guest)
{
	struct timespec until;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_nsec += 2000000;
	if (until.tv_nsec >= 1000000000) {
		until.tv_nsec -= 1000000000;
		until.tv_sec++;
	}
	pthread_mutex_lock(&guest->lock);
	pthread_cond_timedwait(&guest->changed, &guest->lock, &until);
	pthread_mutex_unlock(&guest->lock);
}

void fake_wait(struct fake_guest *guest, unsigned int seconds, struct migration_info *info)
{
	uint64_t deadline = clock_us() + seconds * UINT64_C(1000000);

	for (;;) {
		migration_query(guest->migration, info);
		if (final(info))
			return;
		require(clock_us() < deadline, "the migration does not end");
		wait_changed(guest);
	}
}

void fake_wait_status(struct fake_guest *guest, enum migration_status status, unsigned int seconds)
{
	uint64_t deadline = clock_us() + seconds * UINT64_C(1000000);
	struct migration_info info;

	for (;;) {
		migration_query(guest->migration, &info);
		if (info.status == status)
			return;
		if (final(&info))
			fprintf(stderr, "%s: %s\n", migration_status_name(info.status), info.error);
		require(!final(&info), "the migration ended before that status");
		require(clock_us() < deadline, "the status does not come");
		wait_changed(guest);
	}
}

bool fake_saw(struct fake_guest *guest, enum migration_status status)
{
	for (unsigned int i = 0; i < atomic_load(&guest->seen_count); i++)
		if (guest->seen[i] == status)
			return true;
	return false;
}
